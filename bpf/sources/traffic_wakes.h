/* Wakes. A task is an opaque pointer; which cgroup it is in is learned whenever it wakes another. */

#define ROOT_CGROUP 1

struct pair {
    u64 from;
    u64 to;
};

BPF_TABLE("hash", struct pair, u64, wakes, EDGES);

static __always_inline void woken(u64 wakee)
{
    u64 me = bpf_get_current_cgroup_id(), waker, *number, one = 1;
    struct owner *known, *other;
    struct pair key = {};

    /* The host's own; among them the idle task, which wakes nothing itself: that was an interrupt. */
    if (me == ROOT_CGROUP)
        return;
    waker = bpf_get_current_task();
    known = find_owner(waker, bucket_of_task(waker));
    if (!known)
        leave_owner(waker, bucket_of_task(waker), me);
    else if (known->cgroup != me)
        known->cgroup = me;
    other = find_owner(wakee, bucket_of_task(wakee));
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
    struct owner *known = find_owner(task, bucket_of_task(task));

    if (known)
        forget_owner(known);
}
