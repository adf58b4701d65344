/* A producer and a consumer of batches of lines, two processes with a file that both map:
 *
 *   batches consume FILE LINES                       for ever
 *   batches produce FILE LINES WARM COUNT [FOLDER]   WARM batches, and COUNT between the marks; COUNT 0: no marks
 *
 * Whichever comes first makes the file. FOLDER: all else is held meanwhile (held.h). The producer prints JSON: a request is a batch.
 */
#include "held.h"
#include "mark.h"

#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>

enum { LINE = 64, EMPTIED = 0, FILLED = 1 };

static volatile char *lines;
static uint32_t *turn; /* in a line of its own, before the others */
static long count_of_lines;

static void fail(const char *what) {
    fprintf(stderr, "batches: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void map_file(const char *name) {
    size_t bytes = (size_t)(count_of_lines + 1) * LINE;
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        fail(name);
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        fail("mmap");
    turn = at;
    lines = (volatile char *)at + LINE;
}

static void wait_for(uint32_t state) {
    while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != state)
        syscall(SYS_futex, turn, FUTEX_WAIT, !state, NULL, NULL, 0);
}

static void hand_over(uint32_t state) {
    __atomic_store_n(turn, state, __ATOMIC_RELEASE);
    syscall(SYS_futex, turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void produce(long batches) {
    for (long batch = 0; batch < batches; batch++) {
        wait_for(EMPTIED);
        for (long i = 0; i < count_of_lines; i++)
            lines[i * LINE] = (char)batch;
        hand_over(FILLED);
    }
    wait_for(EMPTIED);
}

static void consume(void) {
    for (;;) {
        wait_for(FILLED);
        for (long i = 0; i < count_of_lines; i++)
            (void)lines[i * LINE];
        hand_over(EMPTIED);
    }
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int words, char **word) {
    int consumes = words == 4 && strcmp(word[1], "consume") == 0;
    if (!consumes && ((words != 6 && words != 7) || strcmp(word[1], "produce") != 0)) {
        fprintf(stderr, "batches consume FILE LINES | batches produce FILE LINES WARM COUNT [FOLDER]\n");
        return 2;
    }
    count_of_lines = atol(word[3]);
    if (count_of_lines < 1)
        return 2;
    map_file(word[2]);
    if (consumes)
        consume();
    long warm = atol(word[4]), count = atol(word[5]);
    map_mark();
    wait_until_all_is_held(word[6]);
    if (count)
        wake();
    produce(warm);
    double from_s = now_s();
    if (count)
        begin();
    produce(count);
    if (count)
        end();
    double spent_s = now_s() - from_s;
    say_that_it_has_ended(word[6]);
    printf("{\"requests\": %ld, \"answer_bytes\": %ld, \"guest_s\": %.6f}\n", count, count_of_lines * LINE, spent_s);
    return 0;
}
