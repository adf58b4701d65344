/* Who talks to whom: bytes between cgroups over TCP and UDP, and wakes between them. For bcc; UAPI types only.
 *
 * TCP. Where NAT has been at work the two ends agree on no address and no port, but always on the two initial
 * sequence numbers. At any time of a socket's life
 *     own   = snd_una - bytes_acked        the opener's SYN is counted in bytes_acked, so here it is its ISN;
 *     other = rcv_nxt - bytes_received     the acceptor's SYN is not: its ISN + 1.
 * The opener leaves its cgroup under (own + 1, other). That is what the acceptor calls (other, own), so only the
 * acceptor can find anything, and each connection counts once. Bytes come from the socket's own counters.
 * Connections of at most SHORT_SEGMENTS segments cost one entry, and one lookup at the acceptor's FIN; longer ones
 * get storage at their socket and are added up every FLUSH_TICKS, FLUSH_PACKETS or FLUSH_BYTES, whichever is first.
 *
 * UDP. Every sender leaves its cgroup under its address and port; so does every receiver. Bytes to an address that
 * nobody is known to have (yet, or ever: a ClusterIP) wait at the sender's entry until somebody who receives from it,
 * or answers it, shows whom they were for.
 *
 * Wakes. A task is an opaque pointer; which cgroup it is in is learned whenever it wakes somebody.
 *
 * Every path of the two cgroup programs returns 1: 0 would drop the packet.
 */

#ifndef EDGES
#define EDGES 8192
#endif
#define SHORT_SEGMENTS 16
#define FLUSH_TICKS 5
#define FLUSH_PACKETS 16
#define FLUSH_BYTES 65536
/* An acceptor's first packets may come before the opener's entry (connections older than the observer). */
#define TRIES_AT_ONCE 4
#define TRIES 20

#define ETHERTYPE_IPV4 0x0008 /* in network order, on little-endian machines */
#define ETHERTYPE_IPV6 0xDD86
#define TCP_NUMBER 6
#define UDP_NUMBER 17
#define STREAM 1
#define TCP_ESTABLISHED_STATE 1
#define TCP_SYN_SENT_STATE 2
#define TCP_FIN_WAIT1_STATE 4
#define TCP_TIME_WAIT_STATE 6
#define TCP_CLOSE_WAIT_STATE 8
#define TCP_LAST_ACK_STATE 9
#define TCP_LISTEN_STATE 10
#define TCP_CLOSING_STATE 11
#define TCP_NEW_SYN_RECV_STATE 12
#define TCP_FIN 1

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

struct connection_key {
    u32 opener;
    u32 acceptor;
};

struct connection {
    u64 peer;     /* 0 = not found */
    u64 received; /* what has been added up so far: */
    u64 flushed_at;
    u32 sent; /* a sequence number */
    u32 messages;
    u32 packets;
    u32 tries;
};

struct udp_key {
    u64 netns; /* of loopback addresses only */
    u32 address[4];
    u32 port;
    u32 zero;
};

struct udp_owner {
    u64 cgroup;
    s64 waiting_bytes;
    s64 waiting_messages;
};

struct pair {
    u64 from;
    u64 to;
};

BPF_TABLE("hash", struct edge_key, struct edge, edges, EDGES);
BPF_TABLE("hash", struct pair, u64, wakes, EDGES);
BPF_TABLE("lru_hash", struct connection_key, u64, openers, 16384);
BPF_TABLE("lru_hash", struct udp_key, struct udp_owner, udp_owners, 16384);
BPF_TABLE("lru_hash", u64, u64, tasks, 16384);
BPF_SK_STORAGE(connections, struct connection);

enum { RESOLVED, UNMATCHED, FLUSHES, EDGES_FULL, WAKES, WAKES_UNKNOWN, WAKES_FULL, UDP_WAITING, COUNTERS };
BPF_TABLE("percpu_array", u32, u64, counters, COUNTERS);

static __always_inline void count(u32 which)
{
    u64 *counter = counters.lookup(&which);
    if (counter)
        *counter += 1;
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

/* --- TCP */

/* The sequence number after the payload of a segment; flags get TCP's. 0 if it is no plain segment. */
static __always_inline u32 end_of_segment(struct __sk_buff *skb, u32 *first, u8 *flags)
{
    u8 header[14];
    u32 offset = 40, sequence;
    u8 byte = 0;

    if (skb->protocol == ETHERTYPE_IPV4) {
        if (bpf_skb_load_bytes(skb, 0, &byte, 1))
            return 0;
        offset = (byte & 15) * 4;
    } else {
        if (bpf_skb_load_bytes(skb, 6, &byte, 1) || byte != TCP_NUMBER)
            return 0;
    }
    if (bpf_skb_load_bytes(skb, offset, header, sizeof(header)))
        return 0;
    sequence = (u32)header[4] << 24 | (u32)header[5] << 16 | (u32)header[6] << 8 | header[7];
    *first = sequence;
    *flags = header[13];
    return sequence + skb->len - offset - (header[12] >> 4) * 4;
}

/* Connections of few segments: the opener leaves its entry, the acceptor adds all up when it sends its FIN. */
static __always_inline void short_connection(struct __sk_buff *skb, struct bpf_tcp_sock *tcp, u32 state, u32 before)
{
    struct connection_key key = {};
    u32 own = tcp->snd_una - (u32)tcp->bytes_acked;
    u32 other = tcp->rcv_nxt - (u32)tcp->bytes_received;
    u64 me, received, *opener;
    u32 first = 0, end;
    u8 flags = 0;

    if (state == TCP_ESTABLISHED_STATE) {
        /* Only its SYN is acknowledged: this is an opener's ACK of the handshake, or its first data in its stead. */
        if (tcp->bytes_acked == 1 && (tcp->data_segs_out == 0 || before == 1)) {
            me = bpf_skb_cgroup_id(skb);
            key.opener = own + 1;
            key.acceptor = other;
            openers.update(&key, &me);
        }
        return;
    }
    /* A FIN is sent in these states only; the flag is looked at because the states may last longer. */
    if (state != TCP_FIN_WAIT1_STATE && state != TCP_LAST_ACK_STATE && state != TCP_CLOSING_STATE)
        return;
    key.opener = other;
    key.acceptor = own;
    opener = openers.lookup(&key);
    if (!opener)
        return;
    end = end_of_segment(skb, &first, &flags);
    /* Not a second time when the FIN is sent again. */
    if (!(flags & TCP_FIN) || first != tcp->snd_nxt)
        return;
    me = bpf_skb_cgroup_id(skb);
    if (*opener == me)
        return;
    received = tcp->bytes_received;
    if (state != TCP_FIN_WAIT1_STATE && received)
        received -= 1; /* the other's FIN */
    count(RESOLVED);
    add(me, *opener, TCP_NUMBER, end - own, received, (u64)tcp->data_segs_in + tcp->data_segs_out);
}

/* Storage for a connection that has become long, or is older than the observer (then only the rest counts). */
static __always_inline struct connection *remember(struct __sk_buff *skb, struct bpf_sock *sk,
                                                   struct bpf_tcp_sock *tcp, u32 before)
{
    struct connection none = {}, *connection;
    struct connection_key key = {};
    u32 own = tcp->snd_una - (u32)tcp->bytes_acked;
    u64 me;

    if (before <= SHORT_SEGMENTS) {
        none.sent = own;
    } else {
        none.sent = tcp->snd_nxt;
        none.received = tcp->bytes_received;
        none.messages = tcp->data_segs_in + tcp->data_segs_out;
    }
    key.opener = own + 1;
    key.acceptor = tcp->rcv_nxt - (u32)tcp->bytes_received;
    if (openers.lookup(&key)) {
        none.tries = TRIES; /* an opener that is known: the other end counts */
    } else {
        me = bpf_skb_cgroup_id(skb);
        openers.update(&key, &me);
    }
    return connections.sk_storage_get(sk, &none, BPF_SK_STORAGE_GET_F_CREATE);
}

/* Find the opener of a connection; at first at once, then once in a while, then never again. */
static __always_inline void resolve(struct connection *connection, struct bpf_tcp_sock *tcp, u64 now)
{
    struct connection_key key = {};
    u64 *opener;

    if (connection->tries >= TRIES_AT_ONCE && now - connection->flushed_at < FLUSH_TICKS)
        return;
    connection->flushed_at = now;
    key.opener = tcp->rcv_nxt - (u32)tcp->bytes_received;
    key.acceptor = tcp->snd_una - (u32)tcp->bytes_acked;
    opener = openers.lookup(&key);
    if (opener) {
        connection->peer = *opener;
        connection->flushed_at = 0;
        count(RESOLVED);
        return;
    }
    connection->tries += 1;
    if (connection->tries == TRIES)
        count(UNMATCHED);
}

/* Add up what a connection has moved since the last time. */
static __always_inline void flush(struct __sk_buff *skb, struct connection *connection, struct bpf_tcp_sock *tcp,
                                  u64 now)
{
    u64 me = bpf_skb_cgroup_id(skb), received = tcp->bytes_received;
    u32 messages = tcp->data_segs_in + tcp->data_segs_out, sent = tcp->snd_nxt, first = 0, end;
    u8 flags = 0;

    /* This segment is not in snd_nxt yet, unless it is sent again. */
    end = end_of_segment(skb, &first, &flags);
    if (end && first == sent)
        sent = end;
    if (me != connection->peer) {
        add(me, connection->peer, TCP_NUMBER, sent - connection->sent, received - connection->received,
            messages - connection->messages);
        count(FLUSHES);
    }
    connection->sent = sent;
    connection->received = received;
    connection->messages = messages;
    connection->packets = 0;
    connection->flushed_at = now;
}

static __always_inline void long_connection(struct __sk_buff *skb, struct bpf_sock *sk, struct bpf_tcp_sock *tcp,
                                            u32 state, u32 before)
{
    struct connection *connection = connections.sk_storage_get(sk, 0, 0);
    u64 now;

    if (!connection) {
        connection = remember(skb, sk, tcp, before);
        if (!connection)
            return;
    }
    if (!connection->peer && connection->tries >= TRIES)
        return;
    now = bpf_jiffies64();
    if (!connection->peer) {
        resolve(connection, tcp, now);
        if (!connection->peer)
            return;
    }
    connection->packets += 1;
    if (now - connection->flushed_at >= FLUSH_TICKS || connection->packets >= FLUSH_PACKETS ||
        tcp->snd_nxt - connection->sent >= FLUSH_BYTES || tcp->bytes_received - connection->received >= FLUSH_BYTES ||
        state != TCP_ESTABLISHED_STATE)
        flush(skb, connection, tcp, now);
}

static __always_inline void tcp_segment(struct __sk_buff *skb, struct bpf_sock *sk)
{
    u32 state = sk->state, segments, before, in_this;
    struct bpf_tcp_sock *tcp;

    if (state == TCP_LISTEN_STATE || state == TCP_SYN_SENT_STATE || state == TCP_NEW_SYN_RECV_STATE ||
        state == TCP_TIME_WAIT_STATE)
        return;
    tcp = bpf_tcp_sock(sk);
    if (!tcp)
        return;
    segments = tcp->segs_out;
    in_this = skb->gso_segs;
    before = segments - (in_this ? in_this : 1);
    if (segments <= SHORT_SEGMENTS)
        short_connection(skb, tcp, state, before);
    else
        long_connection(skb, sk, tcp, state, before);
}

/* --- UDP */

static __always_inline bool is_loopback(struct udp_key *key)
{
    if (key->address[0] == 0 && key->address[1] == 0)
        return (key->address[2] == 0xffff0000 && (key->address[3] & 0xff) == 127) ||
               (key->address[2] == 0 && key->address[3] == 0x01000000);
    return false;
}

/* Pods share 127.0.0.1: what tells them apart is their network namespace; or, where the kernel does not say that in
 * these programs (before 5.14), the cgroup that theirs are in, which is that of the pod. */
static __always_inline u64 namespace_of(struct __sk_buff *skb)
{
#ifdef NETNS_COOKIE
    static u64 (*netns_cookie)(void *context) = (void *)122;
    return netns_cookie(skb);
#else
    u64 me = bpf_skb_cgroup_id(skb), parent = 0, found = 0, at;
#pragma unroll
    for (int level = 1; level < 12; level++) {
        at = bpf_skb_ancestor_cgroup_id(skb, level);
        if (at == me)
            found = parent;
        parent = at;
    }
    return found;
#endif
}

/* The two ends of a datagram; its payload's bytes, or -1, also for multicast, which is no pair's. IPv4 addresses are
 * written as IPv6 writes them. */
static __always_inline int read_datagram(struct __sk_buff *skb, struct udp_key *source, struct udp_key *target)
{
    u32 offset = 40, ports = 0;
    u8 byte = 0;

    if (skb->protocol == ETHERTYPE_IPV4) {
        if (bpf_skb_load_bytes(skb, 0, &byte, 1) || bpf_skb_load_bytes(skb, 12, &source->address[3], 4) ||
            bpf_skb_load_bytes(skb, 16, &target->address[3], 4))
            return -1;
        offset = (byte & 15) * 4;
        source->address[2] = target->address[2] = 0xffff0000;
        if ((target->address[3] & 0xff) >= 224)
            return -1;
    } else {
        if (bpf_skb_load_bytes(skb, 8, &source->address, 16) || bpf_skb_load_bytes(skb, 24, &target->address, 16))
            return -1;
        if ((target->address[0] & 0xff) == 0xff)
            return -1;
    }
    if (bpf_skb_load_bytes(skb, offset, &ports, 4))
        return -1;
    source->port = ports & 0xffff;
    target->port = ports >> 16;
    if (is_loopback(source))
        source->netns = namespace_of(skb);
    if (is_loopback(target))
        target->netns = source->netns ? source->netns : namespace_of(skb);
    return (int)skb->len - (int)offset - 8;
}

/* The entry of an address, made if need be, with this owner. */
static __always_inline struct udp_owner *own(struct udp_key *key, u64 me)
{
    struct udp_owner *owner = udp_owners.lookup(key);

    if (owner && owner->cgroup == me)
        return owner;
    struct udp_owner fresh = {};
    fresh.cgroup = me;
    udp_owners.update(key, &fresh);
    return udp_owners.lookup(key);
}

/* What a sender has sent to nobody known was for this cgroup. An exchange would need kernel 5.12; so two CPUs may take
 * the same at once, which is then below zero and hides as much of what comes next: the sum stays right. */
static __always_inline void take_waiting(struct udp_owner *sender, u64 receiver)
{
    s64 bytes = sender->waiting_bytes, messages = sender->waiting_messages;

    if (messages <= 0 || bytes < 0)
        return;
    __sync_fetch_and_add(&sender->waiting_bytes, -bytes);
    __sync_fetch_and_add(&sender->waiting_messages, -messages);
    if (sender->cgroup != receiver)
        add(sender->cgroup, receiver, UDP_NUMBER, bytes, 0, messages);
}

static __always_inline void udp_sent(struct __sk_buff *skb)
{
    struct udp_key source = {}, target = {};
    struct udp_owner *mine, *peer;
    u64 me, messages = skb->gso_segs;
    int bytes = read_datagram(skb, &source, &target);

    if (bytes < 0)
        return;
    if (!messages)
        messages = 1;
    me = bpf_skb_cgroup_id(skb);
    mine = own(&source, me);
    peer = udp_owners.lookup(&target);
    if (peer) {
        take_waiting(peer, me);
        if (peer->cgroup != me)
            add(me, peer->cgroup, UDP_NUMBER, bytes, 0, messages);
    } else if (mine) {
        __sync_fetch_and_add(&mine->waiting_bytes, (s64)bytes);
        __sync_fetch_and_add(&mine->waiting_messages, messages);
        count(UDP_WAITING);
    }
}

static __always_inline void udp_received(struct __sk_buff *skb)
{
    struct udp_key source = {}, target = {};
    struct udp_owner *sender;
    u64 me;

    if (read_datagram(skb, &source, &target) < 0)
        return;
    me = bpf_skb_cgroup_id(skb);
    own(&target, me);
    sender = udp_owners.lookup(&source);
    if (sender)
        take_waiting(sender, me);
}

/* --- the programs */

static __always_inline u8 protocol_of(struct __sk_buff *skb)
{
    u8 *data = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end;

    if (skb->protocol == ETHERTYPE_IPV4)
        return data + 10 <= end ? data[9] : 0;
    if (skb->protocol == ETHERTYPE_IPV6)
        return data + 7 <= end ? data[6] : 0;
    return 0;
}

int crm_aff_egress(struct __sk_buff *skb)
{
    struct bpf_sock *sk;
    u8 protocol = protocol_of(skb);

    if (protocol == UDP_NUMBER) {
        udp_sent(skb);
        return 1;
    }
    if (protocol != TCP_NUMBER)
        return 1;
    sk = skb->sk;
    if (!sk)
        return 1;
    sk = bpf_sk_fullsock(sk);
    /* Not the raw socket that the kernel answers for others with. */
    if (sk && sk->type == STREAM)
        tcp_segment(skb, sk);
    return 1;
}

int crm_aff_ingress(struct __sk_buff *skb)
{
    if (protocol_of(skb) == UDP_NUMBER)
        udp_received(skb);
    return 1;
}

int crm_aff_waking(struct bpf_raw_tracepoint_args *context)
{
    u64 waker, wakee, me, one = 1;
    u64 *known, *other, *number;
    struct pair key = {};

    /* The idle task wakes nobody itself: that was an interrupt. */
    if ((u32)bpf_get_current_pid_tgid() == 0)
        return 0;
    wakee = context->args[0];
    me = bpf_get_current_cgroup_id();
    other = tasks.lookup(&wakee);
    waker = bpf_get_current_task();
    known = tasks.lookup(&waker);
    if (!known)
        tasks.update(&waker, &me);
    else if (*known != me)
        *known = me;
    if (!other) {
        count(WAKES_UNKNOWN);
        return 0;
    }
    if (*other == me)
        return 0;
    count(WAKES);
    key.from = me;
    key.to = *other;
    number = wakes.lookup(&key);
    if (number) {
        __sync_fetch_and_add(number, 1);
        return 0;
    }
    if (wakes.insert(&key, &one) && !wakes.lookup(&key))
        count(WAKES_FULL);
    return 0;
}

/* At its very end, as an exiting task still wakes its parent: its pointer may soon be another's. */
int crm_aff_freed(struct bpf_raw_tracepoint_args *context)
{
    u64 task = context->args[0];

    tasks.delete(&task);
    return 0;
}
