/* How a program says what is counted: between begin() and end(). A store to these addresses is all the plugin sees of it. */
#ifndef CACHE_MARK_H
#define CACHE_MARK_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static volatile char *const MARK = (volatile char *)0x6d61726b0000; /* the same as plugin.c's */

/* Once, before the others. */
static inline void map_mark(void) {
    void *at = mmap((void *)MARK, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    MARK[192] = 1; /* the page is there: no fault between the marks */
}

/* From here on a plugin that sleeps models the caches; for another one it is a store like any other. */
static inline void wake(void) { MARK[128] = 1; }

static inline void begin(void) { MARK[0] = 1; }

static inline void end(void) { MARK[64] = 1; }

#endif
