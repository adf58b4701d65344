/* Which cgroup is behind a number: that of a TCP connection's opener, or of a task.
 *
 * An array of buckets of two, as no helper is called for it; a hash of the kernel's costs three to ten times as much.
 * One that finds both places of a bucket taken gets that of the one that has been there longer.
 */

/* Powers of two. */
#define OPENERS 16384
#define TASKS 8192

struct owner {
    u64 key; /* 0 = free */
    u64 cgroup;
    u64 since; /* ticks */
};

BPF_TABLE("array", u32, struct owner, owners, 2 * (OPENERS + TASKS));

static __always_inline u32 bucket_of_opener(u64 key)
{
    return (((u32)key * 0x9E3779B1 ^ (u32)(key >> 32)) & (OPENERS - 1)) * 2;
}

static __always_inline u32 bucket_of_task(u64 task)
{
    return (OPENERS + ((((u32)(task >> 6) * 0x9E3779B1) >> 16) & (TASKS - 1))) * 2;
}

static __always_inline struct owner *find_owner(u64 key, u32 first)
{
    u32 second = first + 1;
    struct owner *one = owners.lookup(&first), *other = owners.lookup(&second);

    if (one && one->key == key)
        return one;
    if (other && other->key == key)
        return other;
    return 0;
}

/* Two CPUs that meet at one place in the same nanoseconds may mix up their cgroups. */
static __always_inline void leave_owner(u64 key, u32 first, u64 cgroup)
{
    u32 second = first + 1;
    struct owner *one = owners.lookup(&first), *other = owners.lookup(&second), *place;

    if (!one || !other)
        return;
    place = one->since <= other->since ? one : other;
    if (one->key == key)
        place = one;
    else if (other->key == key)
        place = other;
    WRITE_ONCE(place->key, 0);
    WRITE_ONCE(place->cgroup, cgroup);
    WRITE_ONCE(place->since, bpf_jiffies64());
    WRITE_ONCE(place->key, key);
}

/* It has been found by the only one that looks for it, and is the first to make room. */
static __always_inline void release_owner(struct owner *owner)
{
    WRITE_ONCE(owner->since, 0);
}

static __always_inline void forget_owner(struct owner *owner)
{
    WRITE_ONCE(owner->key, 0);
    WRITE_ONCE(owner->since, 0);
}
