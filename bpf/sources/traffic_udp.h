/* UDP. Every sender leaves its cgroup under its address and port; so does every receiver. Bytes to an address that
 * no socket is known to have (yet, or ever: a ClusterIP) wait at the sender's entry until one that receives from it,
 * or answers it from that address, shows what they were for.
 *
 * What waits is for one target, the last one. A sender that turns to another gives it up, as it cannot be told any more
 * what it was for: else what it sends to other machines would go to whichever container it talks to next. What it gives up
 * is kept under both addresses (udp_left), for what knows where they lead: conntrack.
 *
 * A datagram that waits leaves a tag under the number of its buffer, which NAT and veth leave as it is: where incoming
 * packets are looked at, it tells the sender, whatever the addresses have become.
 */

/* How long a sender that has turned must stay with its target, in ticks: 1 s to 10 s. A receiver that is slow may
 * until then take what was sent before. */
#define STEADY_TICKS 1024

#ifndef UDP_PATHS
#define UDP_PATHS 16384
#endif

struct udp_key {
    u64 netns; /* of loopback addresses only */
    u32 address[4];
    u32 port;
    u32 zero;
};

struct udp_owner {
    u64 cgroup;
    u64 target; /* what it has sent to last (name_of); 0 = nothing yet */
    u64 turned; /* when it has sent to another one before, ticks; 0 = never */
    s64 waiting_bytes;
    s64 waiting_messages;
};

BPF_TABLE("lru_hash", struct udp_key, struct udp_owner, udp_owners, 16384);

/* What a sender has given up: its address, and name_of its target. */
struct udp_left_key {
    struct udp_key source;
    u64 target;
};

struct udp_left {
    u64 cgroup;
    s64 bytes;
    s64 messages;
};

BPF_TABLE("lru_hash", struct udp_left_key, struct udp_left, udp_left, 16384);

/* Datagrams on their way through this machine: as many as there are between two stacks at a time. 400 KB. */
#define UDP_TAGS 4096
/* On the way for longer: another packet in the same buffer. 64 ms to 160 ms. */
#define TAG_TICKS 16

struct udp_tag {
    u64 buffer; /* 0 = free */
    struct udp_left_key key;
    u64 bytes;
    u64 beginning; /* of its payload */
    u64 since;     /* ticks */
};

BPF_TABLE("array", u32, struct udp_tag, udp_tags, UDP_TAGS);

/* A datagram's two addresses as its sender writes them. */
struct udp_ends {
    struct udp_key source;
    struct udp_key target;
};

/* Where NAT rewrites both of them the two ends agree on none, and nothing shows in the kernel: user space then reads
 * conntrack, and names for both ends the receiver of such a datagram. */
struct udp_path {
    struct udp_key peer;
    u64 target; /* what the peer sends to for an answer (name_of) */
};

BPF_F_TABLE("hash", struct udp_ends, struct udp_path, udp_paths, UDP_PATHS, BPF_F_NO_PREALLOC);

static __always_inline bool is_loopback(struct udp_key *key)
{
    if (key->address[0] == 0 && key->address[1] == 0)
        return (key->address[2] == 0xffff0000 && (key->address[3] & 0xff) == 127) ||
               (key->address[2] == 0 && key->address[3] == 0x01000000);
    return false;
}

/* Pods share 127.0.0.1: what tells them apart is their network namespace; or, where the kernel does not say that in
 * these programs (6.1 does not), the cgroup that theirs are in, which is that of the pod. Of a packet, or else of what
 * runs now. */
static __always_inline u64 namespace_of(void *context, bool is_packet)
{
#ifdef NETNS_COOKIE
    static u64 (*netns_cookie)(void *context) = (void *)122;
    return netns_cookie(context);
#else
    static u64 (*current_ancestor)(int level) = (void *)123;
    u64 me = is_packet ? bpf_skb_cgroup_id(context) : bpf_get_current_cgroup_id(), parent = 0, found = 0, at;
#pragma unroll
    for (int level = 1; level < 12; level++) {
        at = is_packet ? bpf_skb_ancestor_cgroup_id(context, level) : current_ancestor(level);
        if (at == me)
            found = parent;
        parent = at;
    }
    return found;
#endif
}

/* A payload's first bytes. */
static __always_inline u64 beginning_of(struct __sk_buff *skb)
{
    u32 offset = 40;
    u8 byte = 0;
    u64 beginning = 0;

    if (skb->protocol == ETHERTYPE_IPV4) {
        if (bpf_skb_load_bytes(skb, 0, &byte, 1))
            return 0;
        offset = (byte & 15) * 4;
    }
    bpf_skb_load_bytes(skb, offset + 8, &beginning, sizeof(beginning));
    return beginning;
}

/* The number of a packet's buffer: how far it is from the first tag, as the kernel refuses all but differences of
 * pointers; and the place of its tag. */
static __always_inline struct udp_tag *tag_of(struct __sk_buff *skb, u64 *buffer)
{
    u32 index = 0;
    struct udp_tag *first = udp_tags.lookup(&index);
    u64 number = (u64)(long)skb;

    if (!first)
        return 0;
    asm volatile("%0 -= %1" : "+r"(number) : "r"(first));
    *buffer = number;
    index = (number * 0x9E3779B97F4A7C15) >> 40 & (UDP_TAGS - 1);
    return udp_tags.lookup(&index);
}

static __always_inline void leave_tag(struct __sk_buff *skb, struct udp_key *source, u64 target, u64 bytes)
{
    u64 buffer = 0;
    struct udp_tag *tag = tag_of(skb, &buffer);

    if (!tag)
        return;
    WRITE_ONCE(tag->buffer, 0);
    tag->key.source = *source;
    tag->key.target = target;
    tag->bytes = bytes;
    tag->beginning = beginning_of(skb);
    tag->since = bpf_jiffies64();
    WRITE_ONCE(tag->buffer, buffer);
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
        source->netns = namespace_of(skb, true);
    if (is_loopback(target))
        target->netns = source->netns ? source->netns : namespace_of(skb, true);
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

/* An address and port in one number: for IPv4 no two have the same, for IPv6 no two that will ever meet. */
static __always_inline u64 name_of(struct udp_key *key)
{
    u64 high = (u64)key->address[0] << 32 | key->address[1], low = (u64)key->address[2] << 32 | key->address[3];

    low += (high * 0x9E3779B97F4A7C15 + key->netns) * 0x9E3779B97F4A7C15;
    return (low << 16 | low >> 48) ^ key->port;
}

/* Take what waits at a sender; how many messages. An exchange would need kernel 5.12; so two CPUs may take the same at
 * once, which is then below zero and hides as much of what comes next: the sum stays right. */
static __always_inline s64 take_waiting(struct udp_owner *sender, s64 *bytes)
{
    s64 messages = sender->waiting_messages;

    *bytes = sender->waiting_bytes;
    if (messages <= 0 || *bytes < 0)
        return 0;
    __sync_fetch_and_add(&sender->waiting_bytes, -*bytes);
    __sync_fetch_and_add(&sender->waiting_messages, -messages);
    return messages;
}

static __always_inline void add_claimed(u64 sender, u64 receiver, u64 bytes, u64 messages)
{
    count_several(UDP_CLAIMED, messages);
    count_several(UDP_CLAIMED_BYTES, bytes);
    if (sender != receiver)
        add(sender, receiver, UDP_NUMBER, bytes, 0, messages);
}

/* What waits at a sender was for this cgroup. Whether there was something. */
static __always_inline bool claim(struct udp_owner *sender, u64 receiver)
{
    s64 bytes, messages = take_waiting(sender, &bytes);

    if (!messages)
        return false;
    add_claimed(sender->cgroup, receiver, bytes, messages);
    return true;
}

/* Keep what a sender gives up. */
static __always_inline void leave(struct udp_left_key *key, u64 cgroup, s64 bytes, s64 messages)
{
    struct udp_left *left = udp_left.lookup(key), fresh = {};

    count_several(UDP_GIVEN_UP, messages);
    if (left && left->cgroup == cgroup) {
        __sync_fetch_and_add(&left->bytes, bytes);
        __sync_fetch_and_add(&left->messages, messages);
        return;
    }
    fresh.cgroup = cgroup;
    fresh.bytes = bytes;
    fresh.messages = messages;
    udp_left.update(key, &fresh);
}

/* The sender, which has this address, sends to this target now. */
static __always_inline void turn_to(struct udp_owner *sender, struct udp_key *source, u64 target)
{
    struct udp_left_key key = {};
    s64 bytes, messages;

    if (sender->target == target)
        return;
    if (sender->target)
        sender->turned = bpf_jiffies64();
    key.source = *source;
    key.target = sender->target;
    sender->target = target;
    messages = take_waiting(sender, &bytes);
    if (messages)
        leave(&key, sender->cgroup, bytes, messages);
}

/* Whether one that has received from this sender has received what waits, though not at the address it was sent to:
 * NAT may lie between them. */
static __always_inline bool is_steady(struct udp_owner *sender)
{
    return !sender->turned || bpf_jiffies64() - sender->turned > STEADY_TICKS;
}

static __always_inline void udp_sent(struct __sk_buff *skb)
{
    struct udp_ends ends = {};
    struct udp_owner *mine, *peer;
    struct remote_key remote = {};
    struct udp_path *path = 0;
    u64 me, messages = skb->gso_segs;
    int bytes = read_datagram(skb, &ends.source, &ends.target);

    if (bytes < 0)
        return;
    if (!messages)
        messages = 1;
    me = bpf_skb_cgroup_id(skb);
    mine = own(&ends.source, me);
    if (mine)
        turn_to(mine, &ends.source, name_of(&ends.target));
    peer = udp_owners.lookup(&ends.target);
    if (!peer) {
        path = udp_paths.lookup(&ends);
        if (path)
            peer = udp_owners.lookup(&path->peer);
    }
    if (peer) {
        /* An answer. One to a NAT's address comes from another; but what answers has asked for the sender's address. */
        if (peer->target == (path ? path->target : name_of(&ends.source)))
            claim(peer, me);
        if (path) {
            count_several(UDP_BY_PATH, messages);
            if (mine)
                claim(mine, peer->cgroup);
        }
        if (peer->cgroup != me)
            add(me, peer->cgroup, UDP_NUMBER, bytes, 0, messages);
    } else if (mine) {
        __sync_fetch_and_add(&mine->waiting_bytes, (s64)bytes);
        __sync_fetch_and_add(&mine->waiting_messages, messages);
        count_several(UDP_WAITING, messages);
        count_several(UDP_WAITING_BYTES, bytes);
        leave_tag(skb, &ends.source, mine->target, bytes);
        if (!ends.target.netns) {
            __builtin_memcpy(remote.address, ends.target.address, sizeof(remote.address));
            add_remote(&remote, me, bytes);
        }
    }
}

/* What waits for this target at its sender, and what that has given up of it, was for this cgroup. */
static __always_inline bool claim_sent_to(struct udp_left_key *key, u64 receiver)
{
    struct udp_owner *sender = udp_owners.lookup(&key->source);
    bool is_claimed = sender && sender->target == key->target && claim(sender, receiver);
    struct udp_left *left = udp_left.lookup(key), taken;

    if (!left)
        return is_claimed;
    taken = *left;
    if (udp_left.delete(key))
        return is_claimed;
    add_claimed(taken.cgroup, receiver, taken.bytes, taken.messages);
    return true;
}

static __always_inline bool claim_flow(struct udp_ends *ends, u64 receiver)
{
    struct udp_left_key key = {};

    key.source = ends->source;
    key.target = name_of(&ends->target);
    return claim_sent_to(&key, receiver);
}

/* Run by user space, with what conntrack has of a flow: its datagrams' ends as the opener writes them, and those of the
 * answers as the other end does. Whether both ends are sockets of this machine. */
static __always_inline bool udp_path_told(struct __sk_buff *skb)
{
    struct udp_ends there, back;
    struct udp_owner *opener, *other;
    struct udp_path path = {};

    if (bpf_skb_load_bytes(skb, 0, &there, sizeof(there)) ||
        bpf_skb_load_bytes(skb, sizeof(there), &back, sizeof(back)))
        return false;
    opener = udp_owners.lookup(&there.source);
    other = udp_owners.lookup(&back.source);
    if (!opener || !other)
        return false;
    path.peer = back.source;
    path.target = name_of(&back.target);
    udp_paths.update(&there, &path);
    path.peer = there.source;
    path.target = name_of(&there.target);
    udp_paths.update(&back, &path);
    if (claim_flow(&there, other->cgroup))
        count(UDP_BY_PATH);
    if (claim_flow(&back, opener->cgroup))
        count(UDP_BY_PATH);
    return true;
}

/* A packet that has a tag was sent by a container of this machine: by what the tag says. */
static __always_inline bool claim_tagged(struct __sk_buff *skb, u64 bytes, u64 receiver)
{
    u64 buffer = 0;
    struct udp_tag *tag = tag_of(skb, &buffer);
    struct udp_left_key key;

    if (!tag || tag->buffer != buffer)
        return false;
    WRITE_ONCE(tag->buffer, 0);
    key = tag->key;
    return tag->bytes == bytes && bpf_jiffies64() - tag->since <= TAG_TICKS && tag->beginning == beginning_of(skb) &&
           claim_sent_to(&key, receiver);
}

static __always_inline void udp_received(struct __sk_buff *skb)
{
    struct udp_key source = {}, target = {};
    struct udp_owner *sender;
    int bytes = read_datagram(skb, &source, &target);
    u64 me;

    if (bytes < 0)
        return;
    me = bpf_skb_cgroup_id(skb);
    own(&target, me);
    if (claim_tagged(skb, bytes, me)) {
        count(UDP_BY_INGRESS);
        return;
    }
    sender = udp_owners.lookup(&source);
    if (sender && (sender->target == name_of(&target) || is_steady(sender)) && claim(sender, me))
        count(UDP_BY_INGRESS);
}

/* The same, seen by a caller of recvfrom or recvmsg; its own address is not known here. */
static __always_inline void udp_taken(struct bpf_sock_addr *context, struct udp_key *source)
{
    struct udp_owner *sender;

    source->port = context->user_port & 0xffff;
    if (is_loopback(source))
        source->netns = namespace_of(context, false);
    sender = udp_owners.lookup(source);
    /* Asked here already, for mostly there is nothing and the cgroup would be asked for in vain. */
    if (sender && sender->waiting_messages > 0 && is_steady(sender))
        claim(sender, bpf_get_current_cgroup_id());
}
