/* Which cgroup has opened a TCP connection, under a number that the other end knows (traffic_tcp.h), and which has
 * accepted it, as soon as that end has sent something.
 *
 * An array of buckets, as no helper is called for it; a hash of the kernel's costs three to ten times as much. Each
 * number has a bucket in the front of the table, which few open connections fill and caches hold, and two anywhere:
 * with one, a table that is half full would already lose one entry in 25. An entry goes when
 * its connection ends. Where both buckets are full the entry that is needed least gives way, and if its connection may
 * have had bytes to come that is counted, and told of both ends.
 */

/* A power of two. Where it is not given: 65,536 entries, 2 MB. */
#ifndef OPENER_BUCKETS
#define OPENER_BUCKETS 16384
#endif
#define PLACES 4

/* Not needed any more: the acceptor has found it, and counts by its own storage or has counted; the opener frees the
 * place. */
#define FOUND 1
/* The opener has closed its end; the acceptor may yet send. */
#define CLOSING_DOWN 2
#define OPEN 3

struct opener {
    u64 key; /* 0 = free */
    u64 cgroup;   /* 0 = has not sent anything since its SYN (TCP fast open) */
    u64 acceptor; /* 0 = has not sent anything yet, or is not on this machine */
    u32 since;    /* ticks, the low half */
    u32 phase;
};

struct opener_bucket {
    struct opener places[PLACES];
};

BPF_TABLE("array", u32, struct opener_bucket, openers, OPENER_BUCKETS);

static __always_inline struct opener_bucket *bucket_of(u64 key, u32 shift, u32 buckets)
{
    u32 index = (key * 0x9E3779B97F4A7C15) >> shift & (buckets - 1);
    return openers.lookup(&index);
}

/* 256 KB, for 8,192 connections open at a time. */
#define FRONT_BUCKETS (OPENER_BUCKETS < 2048 ? OPENER_BUCKETS : 2048)
#define FRONT_BUCKET 30, FRONT_BUCKETS
#define FIRST_BUCKET 40, OPENER_BUCKETS
#define SECOND_BUCKET 20, OPENER_BUCKETS

static __always_inline struct opener *find_in(struct opener_bucket *bucket, u64 key)
{
#pragma unroll
    for (int place = 0; place < PLACES; place++)
        if (bucket->places[place].key == key)
            return &bucket->places[place];
    return 0;
}

static __always_inline struct opener *find_opener(u64 key)
{
    struct opener_bucket *bucket = bucket_of(key, FRONT_BUCKET);
    struct opener *found = bucket ? find_in(bucket, key) : 0;

    if (found)
        return found;
    bucket = bucket_of(key, FIRST_BUCKET);
    found = bucket ? find_in(bucket, key) : 0;
    if (found)
        return found;
    bucket = bucket_of(key, SECOND_BUCKET);
    return bucket ? find_in(bucket, key) : 0;
}

/* How much an entry is needed; of two that are needed alike the older one less. */
static __always_inline u64 need_of(struct opener *opener, u32 now)
{
    return opener->key ? (u64)opener->phase << 32 | (opener->since - now + 0x80000000) : 0;
}

static __always_inline struct opener *least_needed(struct opener_bucket *bucket, u32 now)
{
    struct opener *least = &bucket->places[0];

#pragma unroll
    for (int place = 1; place < PLACES; place++)
        if (need_of(&bucket->places[place], now) < need_of(least, now))
            least = &bucket->places[place];
    return least;
}

/* is_new: it cannot have been left before. Two CPUs that meet at one place in the same nanoseconds may mix up their entries. */
static __always_inline void leave_opener(u64 key, u64 cgroup, bool is_new)
{
    struct opener_bucket *front = bucket_of(key, FRONT_BUCKET), *first, *second;
    u32 now = bpf_jiffies64();
    struct opener *place, *other;

    if (!front)
        return;
    if (!is_new && find_opener(key))
        return;
    place = find_in(front, 0);
    if (!place) {
        first = bucket_of(key, FIRST_BUCKET);
        second = bucket_of(key, SECOND_BUCKET);
        if (!first || !second)
            return;
        place = least_needed(first, now);
        other = least_needed(second, now);
        if (need_of(other, now) < need_of(place, now))
            place = other;
        if (place->key && (place->phase == OPEN || (place->phase == CLOSING_DOWN && place->acceptor))) {
            count(OPENERS_EVICTED);
            if (place->cgroup)
                note_lost(place->cgroup);
            if (place->acceptor && place->acceptor != place->cgroup)
                note_lost(place->acceptor);
        }
    }
    WRITE_ONCE(place->key, 0);
    WRITE_ONCE(place->cgroup, cgroup);
    WRITE_ONCE(place->acceptor, 0);
    WRITE_ONCE(place->since, now);
    WRITE_ONCE(place->phase, OPEN);
    WRITE_ONCE(place->key, key);
}

static __always_inline void forget_opener(struct opener *opener)
{
    WRITE_ONCE(opener->key, 0);
}
