/* TCP. Where NAT has been at work the two ends agree on no address and no port, but always on the two initial
 * sequence numbers. At any time of a socket's life
 *     own_number   = snd_una - bytes_acked        the opener's SYN is counted in bytes_acked, so here it is its ISN;
 *     other_number = rcv_nxt - bytes_received     the acceptor's SYN is not: its ISN + 1.
 * The opener leaves its cgroup under (own + 1, other). That is what the acceptor calls (other, own), so only the
 * acceptor can find anything, and each connection counts once. Bytes come from the socket's own counters. The acceptor
 * leaves its own cgroup there with what it sends first.
 * Connections of at most SHORT_SEGMENTS segments cost one entry, and one lookup at the acceptor's FIN; longer ones
 * get storage at their socket, are looked at every LOOK_EVERY segments and added up every FLUSH_TICKS, FLUSH_LOOKS or
 * FLUSH_BYTES, whichever is first.
 *
 * A packet's price is mostly that of the helpers it calls (where returns are made safe, 25 ns each): a packet of a
 * short connection calls one.
 */

#define SHORT_SEGMENTS 16
#define FLUSH_TICKS 5
#define FLUSH_LOOKS 4
/* Segments from one look at a long connection to the next. */
#define LOOK_EVERY 4
#define FLUSH_BYTES 65536
/* An acceptor's first packets may come before the opener's entry (connections older than the observer). */
#define TRIES_AT_ONCE 4
#define TRIES 20
/* After that it is tried when it speaks, after pauses that double: from FLUSH_TICKS to 1,024 times that. So does a long
 * connection's opener leave its entry again if it has had to give way. */
#define LONGEST_PAUSE 10

#define ESTABLISHED 1
#define SYN_RECEIVED 3
#define CLOSE 7
#define FIN_WAIT1 4
#define FIN_WAIT2 5
#define CLOSE_WAIT 8
#define LAST_ACK 9
#define CLOSING 11
/* Of these the counters can be read. SYN_RECEIVED: with TCP fast open an acceptor may answer before the handshake ends. */
#define HAS_COUNTERS \
    (1 << ESTABLISHED | 1 << SYN_RECEIVED | 1 << FIN_WAIT1 | 1 << FIN_WAIT2 | 1 << CLOSE_WAIT | 1 << LAST_ACK | 1 << CLOSING)
/* In these a socket sends its FIN; not only that, as they may last. */
#define SENDS_FIN (1 << FIN_WAIT1 | 1 << LAST_ACK | 1 << CLOSING)
#define FIN 1
/* An ACK by IPv6 with timestamps. */
#define LEAST_PACKET 72
#define STREAM 1

struct connection {
    u64 peer;     /* 0 = not found (yet) */
    u64 received; /* what has been added up so far: */
    u64 flushed_at;
    u64 tried_at;
    u32 sent; /* a sequence number */
    u32 messages;
    u32 looks;
    u32 tries;
    u32 role;
    u32 zero;
};

/* Roles: not known, or an acceptor; an opener; one whose acceptor counts, so that there is nothing more to do. */
#define IS_OPENER 1
#define IS_DONE 2

BPF_SK_STORAGE(connections, struct connection);

static __always_inline u32 own_number(struct bpf_tcp_sock *tcp)
{
    return tcp->snd_una - (u32)tcp->bytes_acked;
}

static __always_inline u32 other_number(struct bpf_tcp_sock *tcp)
{
    return tcp->rcv_nxt - (u32)tcp->bytes_received;
}

static __always_inline u64 key_as_opener(struct bpf_tcp_sock *tcp)
{
    return (u64)(own_number(tcp) + 1) << 32 | other_number(tcp);
}

static __always_inline u64 key_as_acceptor(struct bpf_tcp_sock *tcp)
{
    return (u64)other_number(tcp) << 32 | own_number(tcp);
}

struct segment {
    u32 first; /* sequence number */
    u32 end;   /* that after the payload; 0 if the header cannot be read here */
    u32 flags;
};

static __always_inline void read_segment(struct __sk_buff *skb, struct segment *segment)
{
    u8 *data = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end, *tcp;
    u32 offset = 40;

    segment->first = segment->end = segment->flags = 0;
    if (skb->protocol == ETHERTYPE_IPV4) {
        if (data + 1 > end)
            return;
        offset = (data[0] & 15) * 4;
    }
    tcp = data + offset;
    if (tcp + 14 > end)
        return;
    segment->first = (u32)tcp[4] << 24 | (u32)tcp[5] << 16 | (u32)tcp[6] << 8 | tcp[7];
    segment->flags = tcp[13];
    segment->end = segment->first + skb->len - offset - (tcp[12] >> 4) * 4;
}

/* What an acceptor sends before anything of it is acknowledged: an opener's SYN is by then. With fast open the opener may
 * send nothing before it is answered: then the acceptor makes the entry, and the opener's cgroup is left there later. */
static __always_inline void accept_opener(struct __sk_buff *skb, struct bpf_tcp_sock *tcp, u32 state)
{
    u64 key = key_as_acceptor(tcp);
    struct opener *opener = find_opener(key);

    if (!opener && (state == SYN_RECEIVED || (tcp->segs_in == 1 && tcp->bytes_received))) {
        leave_opener(key, 0, false);
        opener = find_opener(key);
    }
    if (opener && !opener->acceptor)
        WRITE_ONCE(opener->acceptor, bpf_skb_cgroup_id(skb));
}

/* Whether it is an opener that sends its first segment after the SYN: an acceptor of which something is acknowledged has
 * received two segments. */
static __always_inline bool begins_opened(struct bpf_tcp_sock *tcp, u32 before)
{
    if (tcp->bytes_acked == 1)
        return tcp->data_segs_out == 0 || before == 1;
    return tcp->bytes_acked && before == 1 && tcp->segs_in == 1;
}

/* An opener whose data was acknowledged with its SYN. */
static __always_inline void join_opener(struct __sk_buff *skb, struct bpf_tcp_sock *tcp)
{
    struct opener *opener = find_opener(key_as_opener(tcp));

    if (opener && !opener->cgroup)
        WRITE_ONCE(opener->cgroup, bpf_skb_cgroup_id(skb));
}

/* The opener sends its FIN. The acceptor, if it is on this machine and has not, still looks for the entry at its own. */
static __always_inline void close_opener(struct opener *opener, u32 state)
{
    if (state == LAST_ACK || opener->phase == FOUND)
        forget_opener(opener);
    else
        WRITE_ONCE(opener->phase, CLOSING_DOWN);
}

static __always_inline bool has_higher_port(struct bpf_sock *sk)
{
    return sk && sk->src_port > bpf_ntohs(sk->dst_port);
}

/* Connections of few segments: the opener leaves its entry, the acceptor adds all up when it sends its FIN. */
static __always_inline void short_connection(struct __sk_buff *skb, struct bpf_tcp_sock *tcp, u32 state, u32 before)
{
    struct segment segment;
    struct remote_key remote = {};
    struct opener *opener;
    u64 me, received, cgroup, sent, as_opener, as_acceptor;
    bool is_opener;

    if (state == ESTABLISHED || state == SYN_RECEIVED) {
        /* An opener's ACK of the handshake, or its first data in its stead. */
        if (begins_opened(tcp, before))
            leave_opener(key_as_opener(tcp), bpf_skb_cgroup_id(skb), before == 1);
        else if (tcp->bytes_acked == 0)
            accept_opener(skb, tcp, state);
        else if (before <= 2 && tcp->bytes_acked > 1)
            join_opener(skb, tcp);
        return;
    }
    if (!(1 << state & SENDS_FIN))
        return;
    read_segment(skb, &segment);
    /* Not a second time when the FIN is sent again. */
    if (!(segment.flags & FIN) || segment.first != tcp->snd_nxt)
        return;
    received = tcp->bytes_received;
    if (state != FIN_WAIT1 && received)
        received -= 1; /* the other's FIN */
    sent = segment.end - own_number(tcp);
    /* Openers have high ports: asked first as what it probably is, as a number that is not there costs most. */
    is_opener = has_higher_port(skb->sk);
    as_opener = key_as_opener(tcp);
    as_acceptor = key_as_acceptor(tcp);
    /* Read here: the compiler would choose between places in tcp, which the kernel refuses. */
    asm volatile("" : "+r"(as_opener), "+r"(as_acceptor));
    opener = find_opener(is_opener ? as_opener : as_acceptor);
    if (!opener) {
        is_opener = !is_opener;
        opener = find_opener(is_opener ? as_opener : as_acceptor);
    }
    if (!opener) {
        if (read_opener(skb, &remote))
            add_remote(&remote, bpf_skb_cgroup_id(skb), sent + received);
        return;
    }
    if (is_opener) {
        close_opener(opener, state);
        return;
    }
    cgroup = opener->cgroup;
    /* An opener that has not closed yet finds by it that it is one, and frees it. */
    if (opener->phase == OPEN)
        WRITE_ONCE(opener->phase, FOUND);
    else
        forget_opener(opener);
    me = bpf_skb_cgroup_id(skb);
    if (!cgroup || cgroup == me)
        return;
    count(RESOLVED);
    add(me, cgroup, TCP_NUMBER, sent, received,
        (u64)tcp->data_segs_in + tcp->data_segs_out);
}

/* Storage for a connection that has become long, or is older than the observer (then only the rest counts). */
static __always_inline struct connection *remember(struct __sk_buff *skb, struct bpf_sock *sk,
                                                   struct bpf_tcp_sock *tcp, u32 before)
{
    struct connection none = {};
    u64 key = key_as_opener(tcp);
    struct opener *opener;

    /* The first look at one that was short until now. */
    if (before < SHORT_SEGMENTS + LOOK_EVERY) {
        none.sent = own_number(tcp);
    } else {
        none.sent = tcp->snd_nxt;
        none.received = tcp->bytes_received;
        none.messages = tcp->data_segs_in + tcp->data_segs_out;
    }
    opener = find_opener(key);
    if (opener) {
        none.role = IS_OPENER; /* the other end counts */
        join_opener(skb, tcp);
    } else if (!find_opener(key_as_acceptor(tcp)))
        leave_opener(key, bpf_skb_cgroup_id(skb), false);
    return connections.sk_storage_get(sk, &none, BPF_SK_STORAGE_GET_F_CREATE);
}

static __always_inline u64 pause_of(u32 tries)
{
    return (u64)FLUSH_TICKS << (tries < LONGEST_PAUSE ? tries : LONGEST_PAUSE);
}

/* A long connection's opener: its entry stays until the acceptor has found it. */
static __always_inline void keep_opener(struct __sk_buff *skb, struct connection *connection, struct bpf_tcp_sock *tcp,
                                        u32 state, u64 now)
{
    struct opener *opener;

    if (state == ESTABLISHED && now - connection->flushed_at < pause_of(connection->tries))
        return;
    connection->flushed_at = now;
    opener = find_opener(key_as_opener(tcp));
    if (opener) {
        if (state != ESTABLISHED)
            close_opener(opener, state);
        else if (opener->phase == FOUND) {
            forget_opener(opener);
            connection->role = IS_DONE;
        }
    } else if (state == ESTABLISHED) {
        connection->tries += 1;
        leave_opener(key_as_opener(tcp), bpf_skb_cgroup_id(skb), false);
    }
}

/* Find the opener of a connection; at first at once, then after longer and longer pauses. */
static __always_inline void resolve(struct __sk_buff *skb, struct connection *connection, struct bpf_tcp_sock *tcp,
                                    u32 state, u64 now)
{
    struct remote_key remote = {};
    struct opener *opener;
    u32 tries = connection->tries;

    if (state == ESTABLISHED && tries >= TRIES_AT_ONCE &&
        now - connection->tried_at < pause_of(tries < TRIES ? 0 : tries - TRIES))
        return;
    connection->tried_at = now;
    opener = find_opener(key_as_acceptor(tcp));
    if (opener && opener->cgroup) {
        connection->peer = opener->cgroup;
        connection->flushed_at = 0;
        WRITE_ONCE(opener->phase, FOUND);
        /* Left while it was not known to be the acceptor. */
        opener = find_opener(key_as_opener(tcp));
        if (opener)
            forget_opener(opener);
        count(RESOLVED);
        return;
    }
    connection->tries = tries + 1;
    opener = find_opener(key_as_opener(tcp));
    if (opener && opener->phase == FOUND) {
        /* So it is the opener, of a connection older than the observer. */
        forget_opener(opener);
        connection->role = IS_DONE;
        connection->peer = 0;
        return;
    }
    if (opener && state != ESTABLISHED)
        close_opener(opener, state);
    else if (!opener && tries >= TRIES && state == ESTABLISHED)
        leave_opener(key_as_opener(tcp), bpf_skb_cgroup_id(skb), false);
    /* An end that is about to close has waited for long enough. */
    if (state != ESTABLISHED && tries < TRIES)
        connection->tries = TRIES;
    if (connection->tries == TRIES) {
        count(UNMATCHED);
        if (read_opener(skb, &remote))
            connection->peer = ELSEWHERE;
    }
}

/* Add up what a connection has moved since the last time. */
static __always_inline void flush(struct __sk_buff *skb, struct connection *connection, struct bpf_tcp_sock *tcp,
                                  u64 now)
{
    u64 me = bpf_skb_cgroup_id(skb), received = tcp->bytes_received;
    u32 messages = tcp->data_segs_in + tcp->data_segs_out, sent = tcp->snd_nxt;
    struct remote_key remote = {};
    struct segment segment;

    /* This segment is not in snd_nxt yet, unless it is sent again. */
    read_segment(skb, &segment);
    if (segment.end && segment.first == sent)
        sent = segment.end;
    if (connection->peer == ELSEWHERE) {
        /* What cannot be read here waits for the next segment that can. */
        if (!read_opener(skb, &remote))
            return;
        add_remote(&remote, me, (u64)(sent - connection->sent) + received - connection->received);
    } else if (me != connection->peer) {
        add(me, connection->peer, TCP_NUMBER, sent - connection->sent, received - connection->received,
            messages - connection->messages);
        count(FLUSHES);
    }
    connection->sent = sent;
    connection->received = received;
    connection->messages = messages;
    connection->looks = 0;
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
    if (connection->role == IS_DONE)
        return;
    now = bpf_jiffies64();
    if (connection->role == IS_OPENER) {
        keep_opener(skb, connection, tcp, state, now);
        return;
    }
    if (!connection->peer || connection->peer == ELSEWHERE) {
        resolve(skb, connection, tcp, state, now);
        if (!connection->peer)
            return;
    }
    connection->looks += 1;
    if (now - connection->flushed_at >= FLUSH_TICKS || connection->looks >= FLUSH_LOOKS ||
        tcp->snd_nxt - connection->sent >= FLUSH_BYTES || tcp->bytes_received - connection->received >= FLUSH_BYTES ||
        state != ESTABLISHED)
        flush(skb, connection, tcp, now);
}

/* An end sends a reset, and is closed by it. What the other has sent and this one has not read counts too. An acceptor
 * that has sent its FIN has counted: then there is no entry. */
static __always_inline void reset_connection(struct __sk_buff *skb, struct bpf_sock *sk, struct bpf_tcp_sock *tcp)
{
    struct connection *connection = connections.sk_storage_get(sk, 0, 0);
    u64 messages = (u64)tcp->data_segs_in + tcp->data_segs_out, cgroup, me;
    u32 sent = tcp->snd_nxt - own_number(tcp);
    struct opener *opener = find_opener(key_as_acceptor(tcp));
    bool is_opener = !opener, is_counted;

    if (connection && connection->peer)
        flush(skb, connection, tcp, bpf_jiffies64());
    if (is_opener)
        opener = find_opener(key_as_opener(tcp));
    if (!opener)
        return;
    is_counted = opener->phase == FOUND || !opener->acceptor || (connection && !is_opener);
    cgroup = is_opener ? opener->acceptor : opener->cgroup;
    forget_opener(opener);
    me = bpf_skb_cgroup_id(skb);
    if (is_counted || !cgroup || cgroup == me)
        return;
    count(RESOLVED);
    if (is_opener)
        add(cgroup, me, TCP_NUMBER, tcp->bytes_received, sent - 1, messages);
    else
        add(me, cgroup, TCP_NUMBER, sent, tcp->bytes_received, messages);
}

static __always_inline void tcp_sent(struct __sk_buff *skb)
{
    struct bpf_sock *sk = skb->sk;
    u32 state, before, in_this;
    struct bpf_tcp_sock *tcp;

    if (!sk)
        return;
    state = sk->state;
    if (state == CLOSE) {
        /* Not the raw socket that the kernel answers for others with. */
        sk = bpf_sk_fullsock(sk);
        if (!sk || sk->type != STREAM)
            return;
        tcp = bpf_tcp_sock(sk);
        if (tcp)
            reset_connection(skb, sk, tcp);
        return;
    }
    if (state > CLOSING || !(1 << state & HAS_COUNTERS))
        return;
    /* The ACK of the other's FIN, or little: the next look brings it, or the FIN. */
    if (state == CLOSE_WAIT && skb->len <= LEAST_PACKET)
        return;
    tcp = bpf_tcp_sock(sk);
    if (!tcp)
        return;
    in_this = skb->gso_segs;
    before = tcp->segs_out - (in_this ? in_this : 1);
    if (tcp->segs_out <= SHORT_SEGMENTS) {
        short_connection(skb, tcp, state, before);
        return;
    }
    /* What is left out here the next look brings, or the FIN. */
    if (state == ESTABLISHED && before / LOOK_EVERY == tcp->segs_out / LOOK_EVERY)
        return;
    sk = bpf_sk_fullsock(sk);
    if (sk)
        long_connection(skb, sk, tcp, state, before);
}
