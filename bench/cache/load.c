/* Fixed work for a server: load ADDRESS REQUEST CONNECTIONS THREADS WARM COUNT [FOLDER].
 *
 * ADDRESS   1.2.3.4:PORT, or the path of a unix socket
 * REQUEST   /PATH: HTTP/1.1's GET of that; otherwise a key: the GET of Redis' protocol
 * COUNT     requests between the marks, after WARM others that fill the modelled caches; both are rounded up to a multiple of
 *           THREADS; 0: no marks
 * FOLDER    where it says that it is connected, and waits until all else is held (held.h)
 *
 * Connections stay open, and each has one request under way. All answers of a run must be as long as the first. Prints JSON.
 *
 * load idle MILLISECONDS [FOLDER]: nothing is done, as long before the marks and as long between them.
 */
#define _GNU_SOURCE
#include "held.h"
#include "mark.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MOST_THREADS = 64, RECEIVED_AT_ONCE = 16 << 10 };

struct connection {
    int fd;
    size_t received;
};

static struct sockaddr_storage address;
static socklen_t address_length;
static char request[512];
static size_t request_length, answer_length;
static long connections, threads, warm, count;
static pthread_barrier_t connected_all, barrier;

static void fail(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, errno ? strerror(errno) : "not what was expected");
    exit(1);
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void read_address(const char *text) {
    struct sockaddr_un *local = (void *)&address;
    struct sockaddr_in *v4 = (void *)&address;
    char host[64];
    int port;
    if (text[0] == '/') {
        local->sun_family = AF_UNIX;
        snprintf(local->sun_path, sizeof local->sun_path, "%s", text);
        address_length = sizeof *local;
    } else if (sscanf(text, "%63[^:]:%d", host, &port) == 2 && inet_pton(AF_INET, host, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)port);
        address_length = sizeof *v4;
    } else
        fail(text);
}

static void write_request(const char *what) {
    const char *http = "GET %s HTTP/1.1\r\nHost: server\r\n\r\n";
    int length = what[0] == '/' ? snprintf(request, sizeof request, http, what)
                                : snprintf(request, sizeof request, "*2\r\n$3\r\nGET\r\n$%zu\r\n%s\r\n", strlen(what), what);
    if (length < 0 || (size_t)length >= sizeof request)
        fail(what);
    request_length = (size_t)length;
}

static int connected(void) {
    int one = 1, fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (void *)&address, address_length))
        fail("connect");
    if (address.ss_family == AF_INET)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

/* How long an answer is, by its beginning; 0: not enough of it is there. */
static size_t length_of(const char *answer) {
    const char *body = strstr(answer, "\r\n\r\n"), *told = strcasestr(answer, "\r\nContent-Length:");
    errno = 0;
    if (strncmp(answer, "HTTP/1.1 200 ", 13) == 0)
        return body && told ? (size_t)(body + 4 - answer) + strtoul(told + 17, NULL, 10) : 0;
    if (strncmp(answer, "HTTP/1.1", 8) == 0 || answer[0] != '$' || answer[1] == '-')
        fail(answer);
    body = strstr(answer, "\r\n");
    return body ? (size_t)(body + 2 - answer) + strtoul(answer + 1, NULL, 10) + 2 : 0;
}

static void learn_the_answers_length(void) {
    char answer[RECEIVED_AT_ONCE + 1];
    size_t received = 0;
    int fd = connected();
    if (write(fd, request, request_length) != (ssize_t)request_length)
        fail("write");
    while (answer_length == 0 || received < answer_length) {
        size_t at = answer_length ? 0 : received;
        ssize_t got = read(fd, answer + at, RECEIVED_AT_ONCE - at);
        if (got <= 0)
            fail("read");
        received += (size_t)got;
        answer[at + (size_t)got] = '\0';
        if (!answer_length)
            answer_length = length_of(answer);
    }
    close(fd);
}

static void ask(struct connection *connection) {
    connection->received = 0;
    if (send(connection->fd, request, request_length, MSG_NOSIGNAL) != (ssize_t)request_length)
        fail("send");
}

/* So many requests over these connections. */
static void exchange(int poll, struct connection *all, long own, long wanted, char *buffer) {
    long asked = 0, answered = 0;
    for (; asked < own && asked < wanted; asked++)
        ask(&all[asked]);
    while (answered < wanted) {
        struct epoll_event ready[64];
        int events = epoll_wait(poll, ready, 64, -1);
        if (events < 0)
            fail("epoll_wait");
        for (int i = 0; i < events; i++) {
            struct connection *connection = ready[i].data.ptr;
            ssize_t got = recv(connection->fd, buffer, RECEIVED_AT_ONCE, 0);
            errno = got < 0 ? errno : 0;
            if (got <= 0 || (connection->received == 0 && buffer[0] != 'H' && buffer[0] != '$'))
                fail("recv");
            connection->received += (size_t)got;
            if (connection->received > answer_length)
                fail("answer");
            if (connection->received < answer_length)
                continue;
            answered++;
            if (asked < wanted) {
                ask(connection);
                asked++;
            }
        }
    }
}

static void *work(void *number) {
    long own = connections / threads;
    struct connection *all = calloc((size_t)own, sizeof *all);
    char *buffer = malloc(RECEIVED_AT_ONCE);
    int poll = epoll_create1(EPOLL_CLOEXEC);
    (void)number;
    if (!all || !buffer || poll < 0)
        fail("memory");
    for (long i = 0; i < own; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        all[i].fd = connected();
        if (epoll_ctl(poll, EPOLL_CTL_ADD, all[i].fd, &event))
            fail("epoll_ctl");
    }
    pthread_barrier_wait(&connected_all);
    pthread_barrier_wait(&barrier);
    exchange(poll, all, own, warm, buffer);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    exchange(poll, all, own, count, buffer);
    pthread_barrier_wait(&barrier);
    return NULL;
}

static void do_nothing(long milliseconds, const char *folder) {
    wait_until_all_is_held(folder);
    wake();
    nap_ms(milliseconds);
    double from_s = now_s();
    begin();
    nap_ms(milliseconds);
    end();
    say_that_it_has_ended(folder);
    printf("{\"requests\": 0, \"answer_bytes\": 0, \"guest_s\": %.6f}\n", now_s() - from_s);
}

int main(int words, char **word) {
    pthread_t started[MOST_THREADS];
    map_mark();
    if (words > 2 && strcmp(word[1], "idle") == 0) {
        do_nothing(atol(word[2]), word[3]);
        return 0;
    }
    if (words != 7 && words != 8) {
        fprintf(stderr, "load ADDRESS REQUEST CONNECTIONS THREADS WARM COUNT [FOLDER] | load idle MILLISECONDS [FOLDER]\n");
        return 2;
    }
    read_address(word[1]);
    write_request(word[2]);
    connections = atol(word[3]);
    threads = atol(word[4]);
    if (threads < 1 || threads > MOST_THREADS || connections < threads)
        return 2;
    warm = (atol(word[5]) + threads - 1) / threads;
    count = (atol(word[6]) + threads - 1) / threads;
    learn_the_answers_length();
    pthread_barrier_init(&connected_all, NULL, (unsigned)threads + 1);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
    for (long i = 0; i < threads; i++)
        if (pthread_create(&started[i], NULL, work, NULL))
            fail("pthread_create");
    pthread_barrier_wait(&connected_all);
    wait_until_all_is_held(word[7]);
    if (count)
        wake();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier); /* all is warm */
    double from_s = now_s();
    if (count)
        begin();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier); /* all is answered */
    if (count)
        end();
    double spent_s = now_s() - from_s;
    say_that_it_has_ended(word[7]);
    for (long i = 0; i < threads; i++)
        pthread_join(started[i], NULL);
    printf("{\"requests\": %ld, \"answer_bytes\": %zu, \"guest_s\": %.6f}\n", count * threads, answer_length, spent_s);
    return 0;
}
