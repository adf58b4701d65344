/* Freezes the rest of the node while a program counts: hold FOLDER CGROUP OWN.
 *
 * Waits for the program's FOLDER/ready, freezes CGROUP (of v2, with all below it), says FOLDER/go, waits for FOLDER/done, and thaws;
 * that takes half an hour at most, as a program that fails says nothing.
 * OWN is made and is its own cgroup meanwhile, as it may have been started from inside CGROUP.
 */
#include "held.h"

#include <sys/stat.h>

enum { CHECKED_EVERY_MS = 50, MOST_S = 1800 };

static void fail(const char *what) {
    fprintf(stderr, "hold: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void write_to(const char *cgroup, const char *name, const char *value) {
    int fd = open(held_file(cgroup, name), O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, value, strlen(value)) < 0)
        fail(held_file(cgroup, name));
    close(fd);
}

static int is_frozen(const char *cgroup) {
    char events[256] = "";
    int fd = open(held_file(cgroup, "cgroup.events"), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || read(fd, events, sizeof events - 1) < 0)
        fail(held_file(cgroup, "cgroup.events"));
    close(fd);
    return strstr(events, "frozen 1") != NULL;
}

int main(int words, char **word) {
    if (words != 4) {
        fprintf(stderr, "hold FOLDER CGROUP OWN\n");
        return 2;
    }
    if (mkdir(word[3], 0755) && errno != EEXIST)
        fail(word[3]);
    write_to(word[3], "cgroup.procs", "0");
    held_wait(word[1], "ready", CHECKED_EVERY_MS);
    write_to(word[2], "cgroup.freeze", "1");
    while (!is_frozen(word[2]))
        nap_ms(CHECKED_EVERY_MS);
    held_say(word[1], "go");
    int has_ended = 0;
    for (long left_ms = MOST_S * 1000L; left_ms > 0 && !has_ended; left_ms -= CHECKED_EVERY_MS) {
        nap_ms(CHECKED_EVERY_MS);
        has_ended = access(held_file(word[1], "done"), F_OK) == 0;
    }
    write_to(word[2], "cgroup.freeze", "0");
    return has_ended ? 0 : 1;
}
