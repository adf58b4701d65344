/* What containers exchange with other machines, by address.
 *
 * As inside the machine each TCP connection counts once, at its acceptor, both directions: what the acceptor sees of an
 * opener is its own address (the opener may know the acceptor by that of a service only). A datagram counts at its
 * sender. Which addresses are pods is not known here; IN_NETWORKS says which may be, and only those get an entry. What
 * comes out as remote may yet be on this machine (a receiver that has never shown): what knows the pods tells.
 */

#ifndef REMOTES
#define REMOTES 8192
#endif
/* Stands for a cgroup where the other end is in none of this machine. */
#define ELSEWHERE ((u64)-1)

struct remote_key {
    u64 cgroup;
    u32 address[4]; /* as in the packet; IPv4 as IPv6 writes it */
};

BPF_TABLE("hash", struct remote_key, u64, remotes, REMOTES);

static __always_inline void add_remote(struct remote_key *key, u64 cgroup, u64 bytes)
{
#ifdef IN_NETWORKS
    u32 *address = key->address;
    u64 none = 0, *sum;

    if (!(IN_NETWORKS)) {
        count(REMOTE_ELSEWHERE);
        return;
    }
    key->cgroup = cgroup;
    sum = remotes.lookup(key);
    if (!sum) {
        remotes.insert(key, &none);
        sum = remotes.lookup(key);
        if (!sum) {
            count(REMOTES_FULL);
            return;
        }
    }
    __sync_fetch_and_add(sum, bytes);
#endif
}

/* Where a segment goes. False: it cannot be read, or by its ports this end is the opener: those get high ones. */
static __always_inline bool read_opener(struct __sk_buff *skb, struct remote_key *key)
{
#ifdef IN_NETWORKS
    u8 *data = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end, *tcp;
    u32 offset = 40;

    if (skb->protocol == ETHERTYPE_IPV4) {
        if (data + 20 > end)
            return false;
        offset = (data[0] & 15) * 4;
        key->address[2] = 0xffff0000;
        __builtin_memcpy(&key->address[3], data + 16, 4);
    } else {
        if (data + 40 > end)
            return false;
        __builtin_memcpy(key->address, data + 24, 16);
    }
    tcp = data + offset;
    if (tcp + 4 > end)
        return false;
    return ((u32)tcp[0] << 8 | tcp[1]) < ((u32)tcp[2] << 8 | tcp[3]);
#else
    return false;
#endif
}
