/* Between the node and a program that counts: the program waits until all else is held (hold.c), and says when it has ended. */
#ifndef CACHE_HELD_H
#define CACHE_HELD_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static inline void nap_ms(long milliseconds) {
    struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&span, &span) && errno == EINTR)
        ;
}

static inline const char *held_file(const char *folder, const char *name) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static inline void held_say(const char *folder, const char *name) {
    int fd = open(held_file(folder, name), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        perror(held_file(folder, name));
        exit(1);
    }
    close(fd);
}

static inline void held_wait(const char *folder, const char *name, long every_ms) {
    while (access(held_file(folder, name), F_OK))
        nap_ms(every_ms);
}

/* NULL: nothing is held. */
static inline void wait_until_all_is_held(const char *folder) {
    if (!folder)
        return;
    held_say(folder, "ready");
    held_wait(folder, "go", 5);
}

static inline void say_that_it_has_ended(const char *folder) {
    if (folder)
        held_say(folder, "done");
}

#endif
