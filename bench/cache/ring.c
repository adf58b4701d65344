/* A ring of lines between a producer and a consumer, each a thread: ring BATCHES LINES PRODUCER CONSUMER.
 *
 * The producer writes a batch of LINES lines, the consumer reads it, and so on for BATCHES batches; one batch before the
 * marks warms the caches. Under qemu-user a thread is a virtual CPU, numbered in the order of its start: threads
 * that only wait are started in between, so that the producer is CPU PRODUCER and the consumer CPU CONSUMER (1 and above).
 */
#include "mark.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>

struct line {
    volatile uint64_t value;
    char rest[56];
};

static struct line *ring;
static long batches, lines;
static sem_t filled, emptied, done;

static void *produce(void *unused) {
    (void)unused;
    for (long batch = 0; batch <= batches; batch++) {
        sem_wait(&emptied);
        if (batch == 1)
            begin();
        for (long i = 0; i < lines; i++)
            ring[i].value = (uint64_t)batch;
        sem_post(&filled);
    }
    sem_wait(&emptied);
    end();
    sem_post(&done);
    return NULL;
}

static void *consume(void *unused) {
    (void)unused;
    for (long batch = 0; batch <= batches; batch++) {
        sem_wait(&filled);
        for (long i = 0; i < lines; i++)
            if (ring[i].value != (uint64_t)batch)
                abort();
        sem_post(&emptied);
    }
    return NULL;
}

static void *wait_for_the_end(void *unused) {
    (void)unused;
    sem_wait(&done);
    sem_post(&done);
    return NULL;
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "ring BATCHES LINES PRODUCER CONSUMER\n");
        return 2;
    }
    batches = atol(words[1]);
    lines = atol(words[2]);
    long producer = atol(words[3]), consumer = atol(words[4]), last = producer > consumer ? producer : consumer;
    ring = aligned_alloc(64, (size_t)lines * sizeof *ring);
    pthread_t threads[128];
    if (!ring || last >= 128 || producer < 1 || consumer < 1 || producer == consumer)
        return 2;
    map_mark();
    sem_init(&filled, 0, 0);
    sem_init(&emptied, 0, 1);
    sem_init(&done, 0, 0);
    for (long cpu = 1; cpu <= last; cpu++)
        if (pthread_create(&threads[cpu], NULL, cpu == producer ? produce : cpu == consumer ? consume : wait_for_the_end, NULL))
            return 1;
    for (long cpu = 1; cpu <= last; cpu++)
        pthread_join(threads[cpu], NULL);
    return 0;
}
