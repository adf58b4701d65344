/* Wakes. A task is an opaque pointer; which cgroup it is in is learned whenever it wakes another.
 *
 * Tasks are in an array of buckets of two, as no helper is called for it. One that finds both places of a bucket taken
 * gets that of the one that has been there longer: it is learned again with the next wake.
 */

#define ROOT_CGROUP 1
#define WAKE_PAIRS 8192
/* A power of two. */
#define TASKS 8192

struct task_owner {
    u64 task; /* 0 = free */
    u64 cgroup;
    u64 since; /* ticks */
};

BPF_TABLE("array", u32, struct task_owner, tasks, 2 * TASKS);

struct pair {
    u64 from;
    u64 to;
};

BPF_TABLE("hash", struct pair, u64, wakes, WAKE_PAIRS);

static __always_inline u32 bucket_of_task(u64 task)
{
    return ((((u32)(task >> 6) * 0x9E3779B1) >> 16) & (TASKS - 1)) * 2;
}

static __always_inline struct task_owner *find_task(u64 task)
{
    u32 first = bucket_of_task(task), second = first + 1;
    struct task_owner *one = tasks.lookup(&first), *other = tasks.lookup(&second);

    if (one && one->task == task)
        return one;
    if (other && other->task == task)
        return other;
    return 0;
}

/* Two CPUs that meet at one place in the same nanoseconds may mix up their cgroups. */
static __always_inline void learn_task(u64 task, u64 cgroup)
{
    u32 first = bucket_of_task(task), second = first + 1;
    struct task_owner *one = tasks.lookup(&first), *other = tasks.lookup(&second), *place;

    if (!one || !other)
        return;
    place = one->since <= other->since ? one : other;
    WRITE_ONCE(place->task, 0);
    WRITE_ONCE(place->cgroup, cgroup);
    WRITE_ONCE(place->since, bpf_jiffies64());
    WRITE_ONCE(place->task, task);
}

static __always_inline void woken(u64 wakee)
{
    u64 me = bpf_get_current_cgroup_id(), waker, *number, one = 1;
    struct task_owner *known, *other;
    struct pair key = {};

    /* The host's own; among them the idle task, which wakes nothing itself: that was an interrupt. */
    if (me == ROOT_CGROUP)
        return;
    waker = bpf_get_current_task();
    known = find_task(waker);
    if (!known)
        learn_task(waker, me);
    else if (known->cgroup != me)
        known->cgroup = me;
    other = find_task(wakee);
    if (!other) {
        count(WAKES_UNKNOWN);
        return;
    }
    if (other->cgroup == me)
        return;
    count(WAKES);
    key.from = me;
    key.to = other->cgroup;
    number = wakes.lookup(&key);
    if (number) {
        __sync_fetch_and_add(number, 1);
        return;
    }
    if (wakes.insert(&key, &one) && !wakes.lookup(&key))
        count(WAKES_FULL);
}

static __always_inline void forget_task(u64 task)
{
    struct task_owner *known = find_task(task);

    if (known) {
        WRITE_ONCE(known->task, 0);
        WRITE_ONCE(known->since, 0);
    }
}
