/* What all programs count into: edges between cgroups, and what went right and wrong. */

#ifndef EDGES
#define EDGES 65536
#endif
/* Cgroups that have lost something between two samples. */
#define LOSERS 16384
#define TCP_NUMBER 6
#define UDP_NUMBER 17

struct edge_key {
    u64 from; /* TCP: the acceptor. UDP: the sender. */
    u64 to;
    u64 protocol;
};

struct edge {
    u64 sent; /* from -> to */
    u64 received;
    u64 messages;
};

/* Memory for an entry is taken when there is one: few nodes have so many pairs. */
BPF_F_TABLE("hash", struct edge_key, struct edge, edges, EDGES, BPF_F_NO_PREALLOC);
/* How often bytes of a cgroup, which has this id, could not be counted. */
BPF_F_TABLE("hash", u64, u64, lost, LOSERS, BPF_F_NO_PREALLOC);

enum {
    RESOLVED,
    UNMATCHED,
    FLUSHES,
    EDGES_FULL,
    WAKES,
    WAKES_UNKNOWN,
    WAKES_FULL,
    UDP_WAITING,      /* messages whose receiver is not known yet */
    UDP_CLAIMED,      /* messages of those whose receiver has shown */
    UDP_BY_INGRESS,   /* of those, by the ingress program */
    UDP_GIVEN_UP,     /* messages whose sender has turned to another before their receiver has shown */
    REMOTES_FULL,
    REMOTE_ELSEWHERE, /* additions for addresses outside the networks that count */
    OPENERS_EVICTED,  /* entries of openers that gave way though their connections may have gone on */
    UDP_BY_PATH,      /* messages whose receiver was known by conntrack */
    UDP_WAITING_BYTES,
    UDP_CLAIMED_BYTES,
    COUNTERS
};
BPF_TABLE("percpu_array", u32, u64, counters, COUNTERS);

static __always_inline void count_several(u32 which, u64 number)
{
    u64 *counter = counters.lookup(&which);
    if (counter)
        *counter += number;
}

static __always_inline void count(u32 which)
{
    count_several(which, 1);
}

static __always_inline void note_lost(u64 cgroup)
{
    u64 one = 1, *times = lost.lookup(&cgroup);

    if (times)
        __sync_fetch_and_add(times, 1);
    else
        lost.insert(&cgroup, &one);
}

static __always_inline void add(u64 from, u64 to, u64 protocol, u64 sent, u64 received, u64 messages)
{
    struct edge_key key = {};
    struct edge *edge;

    key.from = from;
    key.to = to;
    key.protocol = protocol;
    edge = edges.lookup(&key);
    if (!edge) {
        struct edge none = {};
        /* Another CPU may have been first: then this fails, and the lookup does not. */
        edges.insert(&key, &none);
        edge = edges.lookup(&key);
        if (!edge) {
            count(EDGES_FULL);
            note_lost(from);
            note_lost(to);
            return;
        }
    }
    if (sent)
        __sync_fetch_and_add(&edge->sent, sent);
    if (received)
        __sync_fetch_and_add(&edge->received, received);
    if (messages)
        __sync_fetch_and_add(&edge->messages, messages);
}
