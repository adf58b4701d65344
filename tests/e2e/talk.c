/* talk: programs that exchange a known number of bytes, so that a test knows what an observer should have seen.
 *
 *   talk serve KIND ADDRESS REQUEST RESPONSE           answers every REQUEST bytes with RESPONSE bytes, for ever
 *   talk call  KIND ADDRESS REQUEST RESPONSE [NAME=VALUE...]   asks, and prints what it sent and got as JSON
 *
 * KIND     tcp, udp (connected), sendto (udp, not connected), unix, ring (shared memory and futexes)
 * ADDRESS  serve: a port; call: 1.2.3.4:PORT or [fd00::1]:PORT; unix and ring: a file
 * count=N            messages in all (1)
 * per_connection=N   messages on one connection, then it is closed and another one is made (0: one connection for all)
 * pause_ms=N         after each message
 * last_ms=N          before the last message, and before the last one of go_after
 * go=FILE go_after=N after N messages makes FILE.waiting, and waits until FILE exists
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MOST_CONNECTIONS 1024
#define CONNECT_TRIES 3000 /* 10 ms apart: whoever serves may not have started yet */

struct address {
    struct sockaddr_storage name;
    socklen_t length;
    int type;
};

struct task {
    const char *kind, *go;
    size_t request, response;
    long count, per_connection, pause_ms, last_ms, go_after;
};

/* Messages are made of zeros. */
static char *buffer;

static void fail(const char *what)
{
    fprintf(stderr, "talk: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void nap(long milliseconds)
{
    struct timespec span = {milliseconds / 1000, milliseconds % 1000 * 1000000};

    while (milliseconds > 0 && nanosleep(&span, &span) && errno == EINTR)
        ;
}

static void wait_for(const char *file)
{
    char waiting[256];

    snprintf(waiting, sizeof(waiting), "%s.waiting", file);
    close(open(waiting, O_WRONLY | O_CREAT, 0600));
    while (access(file, F_OK))
        nap(5);
}

static int is(const char *kind, const char *name)
{
    return !strcmp(kind, name);
}

/* ---------------------------------------------------------------- addresses */

static struct address read_address(const char *kind, const char *text)
{
    struct address address = {.type = is(kind, "udp") || is(kind, "sendto") ? SOCK_DGRAM : SOCK_STREAM};
    struct sockaddr_un *local = (void *)&address.name;
    struct sockaddr_in *v4 = (void *)&address.name;
    struct sockaddr_in6 *v6 = (void *)&address.name;
    char host[64] = "";
    int port = 0;

    if (is(kind, "unix")) {
        local->sun_family = AF_UNIX;
        snprintf(local->sun_path, sizeof(local->sun_path), "%s", text);
        address.length = sizeof(*local);
    } else if (sscanf(text, "[%63[^]]]:%d", host, &port) == 2 && inet_pton(AF_INET6, host, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
        address.length = sizeof(*v6);
    } else if (sscanf(text, "%63[^:]:%d", host, &port) == 2 && inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
        address.length = sizeof(*v4);
    } else if (sscanf(text, "%d", &port) == 1) { /* all addresses, IPv4 too */
        v6->sin6_family = AF_INET6;
        v6->sin6_addr = in6addr_any;
        v6->sin6_port = htons(port);
        address.length = sizeof(*v6);
    } else {
        errno = EINVAL;
        fail(text);
    }
    return address;
}

/* ---------------------------------------------------------------- bytes */

static int send_all(int fd, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t sent = send(fd, buffer + done, bytes - done, MSG_NOSIGNAL);
        if (sent < 0)
            return -1;
        done += sent;
    }
    return 0;
}

static int receive_all(int fd, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = recv(fd, buffer + done, bytes - done, 0);
        if (got <= 0)
            return -1;
        done += got;
    }
    return 0;
}

/* ---------------------------------------------------------------- serve */

static int listening(struct address address)
{
    struct sockaddr_un *local = (void *)&address.name;
    int one = 1, fd = socket(address.name.ss_family, address.type, 0);

    if (fd < 0)
        fail("socket");
    if (address.name.ss_family == AF_UNIX)
        unlink(local->sun_path);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (void *)&address.name, address.length))
        fail("bind");
    if (address.type == SOCK_STREAM && listen(fd, 128))
        fail("listen");
    return fd;
}

static void serve_datagrams(int fd, struct task task)
{
    struct sockaddr_storage from;

    for (;;) {
        socklen_t length = sizeof(from);
        ssize_t got = recvfrom(fd, buffer, task.request, 0, (void *)&from, &length);
        if (got > 0 && task.response)
            sendto(fd, buffer, task.response, 0, (void *)&from, length);
    }
}

static void serve_streams(int listener, struct task task)
{
    struct pollfd fds[MOST_CONNECTIONS] = {{.fd = listener, .events = POLLIN}};
    size_t missing[MOST_CONNECTIONS];
    int used = 1, one = 1;

    for (;;) {
        if (poll(fds, used, -1) < 0)
            fail("poll");
        for (int i = used - 1; i > 0; i--) {
            if (!fds[i].revents)
                continue;
            ssize_t got = recv(fds[i].fd, buffer, missing[i], 0);
            if (got > 0 && (missing[i] -= got) == 0) {
                missing[i] = task.request;
                got = send_all(fds[i].fd, task.response) ? 0 : 1;
            }
            if (got <= 0) {
                close(fds[i].fd);
                fds[i] = fds[--used];
                missing[i] = missing[used];
            }
        }
        if (fds[0].revents && used < MOST_CONNECTIONS && (fds[used].fd = accept(listener, NULL, NULL)) >= 0) {
            setsockopt(fds[used].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            fds[used].events = POLLIN;
            fds[used].revents = 0;
            missing[used++] = task.request;
        }
    }
}

/* ---------------------------------------------------------------- shared memory */

static uint32_t *shared_word(const char *file)
{
    int fd = open(file, O_RDWR | O_CREAT, 0600);

    if (fd < 0 || ftruncate(fd, 4096))
        fail(file);
    uint32_t *word = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (word == MAP_FAILED)
        fail("mmap");
    return word;
}

/* Wait until the word has this value, then set the other one and wake who waits for that. */
static void take_turn(uint32_t *word, uint32_t mine)
{
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != mine)
        syscall(SYS_futex, word, FUTEX_WAIT, !mine, NULL, NULL, 0);
    __atomic_store_n(word, !mine, __ATOMIC_RELEASE);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---------------------------------------------------------------- call */

static int connected(const char *kind, struct address address)
{
    struct timeval second = {1, 0};
    int one = 1;

    for (int tries = 0; tries < CONNECT_TRIES; tries++) {
        int fd = socket(address.name.ss_family, address.type, 0);
        if (fd < 0)
            fail("socket");
        if (is(kind, "sendto") || !connect(fd, (void *)&address.name, address.length)) {
            if (address.type == SOCK_DGRAM)
                setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof(second));
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            return fd;
        }
        close(fd);
        nap(10);
    }
    fail("connect");
    return -1;
}

/* One message and its answer; how many were sent, as a datagram or its answer may be lost. */
static int exchange(int fd, struct task task, struct address address)
{
    if (address.type == SOCK_STREAM) {
        if (send_all(fd, task.request) || receive_all(fd, task.response))
            fail("exchange");
        return 1;
    }
    for (int tries = 1; tries <= CONNECT_TRIES; tries++) {
        ssize_t sent = is(task.kind, "sendto")
            ? sendto(fd, buffer, task.request, 0, (void *)&address.name, address.length)
            : send(fd, buffer, task.request, 0);
        if (sent < 0 && errno != ECONNREFUSED)
            fail("send");
        if (!task.response || recv(fd, buffer, task.response, 0) == (ssize_t)task.response)
            return tries;
        if (errno == ECONNREFUSED) { /* nobody listens yet: it was not received */
            tries--;
            nap(10);
        }
    }
    fail("no answer");
    return 0;
}

static void call(struct task task, const char *where)
{
    int is_ring = is(task.kind, "ring"), fd = -1;
    uint32_t *word = is_ring ? shared_word(where) : NULL;
    struct address address = is_ring ? (struct address){0} : read_address(task.kind, where);
    long connections = 0, sent = 0;

    for (long message = 0; message < task.count; message++) {
        if (task.go && message == task.go_after)
            wait_for(task.go);
        if (message && (message == task.count - 1 || message == task.go_after - 1))
            nap(task.last_ms);
        if (is_ring) {
            take_turn(word, 0);
            sent++;
        } else {
            if (fd < 0) {
                fd = connected(task.kind, address);
                connections++;
            }
            sent += exchange(fd, task, address);
        }
        nap(task.pause_ms);
        if (!is_ring && task.per_connection && (message + 1) % task.per_connection == 0) {
            close(fd);
            fd = -1;
        }
    }
    printf("{\"connections\": %ld, \"messages\": %ld, \"sent\": %ld, \"received\": %ld}\n", connections, task.count,
           sent * (long)task.request, task.count * (long)task.response);
}

static void read_option(struct task *task, const char *text)
{
    const char *value = strchr(text, '=');
    struct { const char *name; long *number; } numbers[] = {
        {"count", &task->count}, {"per_connection", &task->per_connection}, {"pause_ms", &task->pause_ms},
        {"last_ms", &task->last_ms}, {"go_after", &task->go_after},
    };

    for (size_t i = 0; value && i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (!strncmp(text, numbers[i].name, value - text) && !numbers[i].name[value - text]) {
            *numbers[i].number = atol(value + 1);
            return;
        }
    if (!strncmp(text, "go=", 3))
        task->go = value + 1;
    else {
        errno = EINVAL;
        fail(text);
    }
}

int main(int argc, char **argv)
{
    struct task task = {.count = 1};

    if (argc < 6) {
        fprintf(stderr, "usage: talk serve|call KIND ADDRESS REQUEST RESPONSE [NAME=VALUE...]\n");
        return 2;
    }
    signal(SIGTERM, SIG_DFL);
    task.kind = argv[2];
    task.request = atol(argv[4]);
    task.response = atol(argv[5]);
    buffer = calloc(1, (task.request > task.response ? task.request : task.response) + 1);
    for (int i = 6; i < argc; i++)
        read_option(&task, argv[i]);
    if (is(argv[1], "call"))
        call(task, argv[3]);
    else if (is(task.kind, "ring"))
        for (uint32_t *word = shared_word(argv[3]);;)
            take_turn(word, 1);
    else if (is(task.kind, "udp"))
        serve_datagrams(listening(read_address(task.kind, argv[3])), task);
    else
        serve_streams(listening(read_address(task.kind, argv[3])), task);
    return 0;
}
