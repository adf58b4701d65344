#include "scheduler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = 0xffff, SHORTAGES = 1 << 16 };
static const double LEAST = 1e-9;

struct thread {
    uint32_t next, previous; /* on its CPU; number of a thread + 1 */
    uint16_t cpu, last;      /* NONE: it sleeps; it has never run */
    uint16_t waited;         /* ticks since it last had a CPU for itself */
};

struct container {
    bool is_there, is_whole, is_throttled;
    unsigned threads, runnable;
    double quota, weight, spent; /* spent: of the quota in this period, ticks */
    struct cpus set;
    unsigned size;
    uint64_t l3s; /* on which it ran within this second */
    double used_before;
    /* of the tick */
    double came, ran, quiet; /* quiet: the chance that none waited */
    double waits[3];         /* for its set, the node, the scheduler */
    /* the trigger, as the kernel's psi_trigger */
    double threshold, window_value, window_before;
    unsigned window;
    uint64_t window_start, fired;
    bool has_fired, is_short;
    uint64_t short_since;
};

struct scheduler {
    unsigned cpus, containers, l3_count;
    uint16_t l3s[MAX_CPUS], nodes[MAX_CPUS], mates[MAX_CPUS];
    struct cpus of_l3[MAX_L3S], of_node[MAX_L3S], idle;
    uint32_t head[MAX_CPUS]; /* number of a thread + 1 */
    unsigned on[MAX_CPUS];
    double wander, sleep;
    uint64_t random, now;
    struct container *all;
    struct thread *threads; /* [container][MAX_THREADS] */
    struct counters *counters;
    struct shortage *shortages;
    unsigned shortage_count;
};

/* ---------------------------------------------------------------- sets of CPUs */

static inline struct cpus both(struct cpus a, struct cpus b) {
    for (int w = 0; w < WORDS; w++)
        a.words[w] &= b.words[w];
    return a;
}

static inline bool any(struct cpus a) {
    return (a.words[0] | a.words[1] | a.words[2] | a.words[3]) != 0;
}

static inline bool holds(const struct cpus *a, unsigned cpu) {
    return a->words[cpu >> 6] >> (cpu & 63) & 1;
}

static inline void put(struct cpus *a, unsigned cpu) {
    a->words[cpu >> 6] |= (uint64_t)1 << (cpu & 63);
}

static inline void take(struct cpus *a, unsigned cpu) {
    a->words[cpu >> 6] &= ~((uint64_t)1 << (cpu & 63));
}

static inline unsigned count(struct cpus a) {
    unsigned found = 0;
    for (int w = 0; w < WORDS; w++)
        found += (unsigned)__builtin_popcountll(a.words[w]);
    return found;
}

#define EACH(cpu, set)                                                                                                \
    for (int w_ = 0; w_ < WORDS; w_++)                                                                                \
        for (uint64_t left_ = (set).words[w_], cpu = 0;                                                               \
             left_ != 0 && (cpu = (uint64_t)(w_ * 64 + __builtin_ctzll(left_)), true); left_ &= left_ - 1)

/* ---------------------------------------------------------------- chance */

static uint64_t number(struct scheduler *all) {
    all->random ^= all->random << 13;
    all->random ^= all->random >> 7;
    all->random ^= all->random << 17;
    return all->random;
}

static bool happens(struct scheduler *all, double chance) {
    return chance > 0 && (double)(number(all) >> 11) * 0x1p-53 < chance;
}

static unsigned one_of(struct scheduler *all, struct cpus set) {
    unsigned skip = (unsigned)(number(all) % count(set));
    EACH(cpu, set) if (skip-- == 0) return (unsigned)cpu;
    return 0;
}

/* ---------------------------------------------------------------- threads on CPUs */

static void leave(struct scheduler *all, uint32_t index) {
    struct thread *thread = &all->threads[index];
    unsigned cpu = thread->cpu;
    if (thread->previous)
        all->threads[thread->previous - 1].next = thread->next;
    else
        all->head[cpu] = thread->next;
    if (thread->next)
        all->threads[thread->next - 1].previous = thread->previous;
    thread->cpu = NONE;
    if (--all->on[cpu] == 0)
        put(&all->idle, cpu);
}

static void join(struct scheduler *all, uint32_t index, unsigned cpu) {
    struct thread *thread = &all->threads[index];
    thread->previous = 0;
    thread->next = all->head[cpu];
    if (thread->next)
        all->threads[thread->next - 1].previous = index + 1;
    all->head[cpu] = index + 1;
    thread->cpu = (uint16_t)cpu;
    if (all->on[cpu]++ == 0)
        take(&all->idle, cpu);
}

/* An idle CPU of these, on an idle core if there is one; NONE. */
static unsigned idle_of(const struct scheduler *all, struct cpus set) {
    struct cpus idle = both(set, all->idle);
    unsigned first = NONE;
    EACH(cpu, idle) {
        if (holds(&all->idle, all->mates[cpu]))
            return (unsigned)cpu;
        if (first == NONE)
            first = (unsigned)cpu;
    }
    return first;
}

static unsigned least_loaded(const struct scheduler *all, struct cpus set) {
    unsigned best = NONE;
    EACH(cpu, set) if (best == NONE || all->on[cpu] < all->on[best]) best = (unsigned)cpu;
    return best;
}

/* Where a thread begins that has never run: the L3 of its set with most idle CPUs. */
static unsigned idlest(struct scheduler *all, const struct container *own) {
    unsigned best = NONE, most = 0, start = (unsigned)(number(all) % all->l3_count);
    for (unsigned step = 0; step < all->l3_count; step++) {
        unsigned l3 = (start + step) % all->l3_count;
        struct cpus here = both(own->set, all->of_l3[l3]);
        unsigned idle = count(both(here, all->idle));
        if (any(here) && (best == NONE || idle > most)) {
            best = l3;
            most = idle;
        }
    }
    return least_loaded(all, both(own->set, all->of_l3[best]));
}

static void wake(struct scheduler *all, struct container *own, uint32_t index) {
    struct thread *thread = &all->threads[index];
    unsigned target = thread->last;
    if (target == NONE)
        target = idlest(all, own);
    else if (!holds(&own->set, target) || happens(all, all->wander))
        target = one_of(all, own->set);
    if (all->on[target]) {
        struct cpus near = both(own->set, all->of_l3[all->l3s[target]]);
        unsigned idle = idle_of(all, near);
        target = idle != NONE ? idle : least_loaded(all, near);
    }
    thread->waited = 0;
    join(all, index, target);
}

/* A thread that shares its CPU goes to an idle one of its set: of its L3 at once, of its node and of others later. */
static unsigned better(const struct scheduler *all, const struct container *own, const struct thread *thread) {
    unsigned here = thread->cpu, found = idle_of(all, both(own->set, all->of_l3[all->l3s[here]]));
    if (found == NONE && thread->waited >= 1)
        found = idle_of(all, both(own->set, all->of_node[all->nodes[here]]));
    if (found == NONE && thread->waited >= 1)
        found = idle_of(all, own->set);
    if (found == NONE && all->on[here] > 2) {
        found = least_loaded(all, thread->waited >= 1 ? own->set : both(own->set, all->of_l3[all->l3s[here]]));
        if (found != NONE && all->on[found] + 2 > all->on[here])
            found = NONE;
    }
    return found;
}

static void balance(struct scheduler *all) {
    for (unsigned cpu = 0; cpu < all->cpus; cpu++) {
        uint32_t next = 0;
        for (uint32_t at = all->head[cpu]; at && all->on[cpu] > 1; at = next) {
            struct thread *thread = &all->threads[at - 1];
            next = thread->next;
            unsigned found = better(all, &all->all[(at - 1) / MAX_THREADS], thread);
            if (found != NONE) {
                leave(all, at - 1);
                join(all, at - 1, found);
            }
        }
    }
}

/* ---------------------------------------------------------------- one tick */

static void note_short(struct scheduler *all, unsigned index, bool grown) {
    struct container *own = &all->all[index];
    own->is_short = false;
    if (all->shortage_count < SHORTAGES)
        all->shortages[all->shortage_count++] = (struct shortage){index, grown, own->short_since, all->now};
}

/* Work comes, threads wake up and go to sleep. */
static void arrive(struct scheduler *all, unsigned index, unsigned offered, double ahead) {
    struct container *own = &all->all[index];
    struct counters *counted = &all->counters[index];
    counted->offered += offered;
    counted->backlog += offered;
    if (own->is_short ? ahead <= own->size : !own->is_whole && ahead > own->size && offered > own->size) {
        if (own->is_short)
            note_short(all, index, false);
        else
            own->is_short = true, own->short_since = all->now;
    }
    unsigned wanted = counted->backlog > LEAST ? (unsigned)ceil(counted->backlog - LEAST) : 0;
    wanted = wanted < own->threads ? wanted : own->threads;
    uint32_t first = index * MAX_THREADS;
    for (unsigned i = wanted; i < own->runnable; i++)
        leave(all, first + i);
    unsigned stay = wanted < own->runnable ? wanted : own->runnable;
    for (unsigned i = 0; i < stay && all->sleep > 0; i++)
        if (happens(all, all->sleep)) {
            leave(all, first + i);
            wake(all, own, first + i);
        }
    for (unsigned i = own->runnable; i < wanted; i++)
        wake(all, own, first + i);
    own->runnable = wanted;
    own->came = offered;
    own->ran = 0;
    own->quiet = 1;
    memset(own->waits, 0, sizeof own->waits);
}

static double need_of(const struct scheduler *all, uint32_t index) {
    unsigned container = index / MAX_THREADS, thread = index % MAX_THREADS;
    double left = all->counters[container].backlog - thread;
    return left < 1 ? left : 1;
}

/* Whose fault it is that a thread waits for so much of a tick. */
static void blame(const struct scheduler *all, struct container *own, double waits, double *idle) {
    double part = waits < *idle ? waits : *idle;
    if (any(both(own->set, all->idle)))
        own->waits[2] += waits;
    else {
        *idle -= part;
        own->waits[0] += part;
        own->waits[1] += waits - part;
    }
}

/* What came in this tick and has not run, as the waits of the tick are divided. */
static void count_waits(struct container *own, struct counters *counted) {
    double waits = own->waits[0] + own->waits[1] + own->waits[2], late = own->came - own->ran;
    if (waits < LEAST)
        return;
    double part = late > 0 && !own->is_throttled ? late / waits : 0;
    *(own->is_whole ? &counted->late_whole : &counted->late_shrunk) += part * own->waits[0];
    counted->late_node += part * own->waits[1];
    counted->late_lag += part * own->waits[2];
    counted->waited_set += own->waits[0];
    counted->waited_node += own->waits[1];
    counted->waited_lag += own->waits[2];
}

/* Whether another thread of its container is on its CPU: there is then always one of them that waits. */
static bool has_sibling(const struct scheduler *all, uint32_t at) {
    unsigned container = (at - 1) / MAX_THREADS;
    for (uint32_t other = all->head[all->threads[at - 1].cpu]; other; other = all->threads[other - 1].next)
        if (other != at && (other - 1) / MAX_THREADS == container)
            return true;
    return false;
}

static void run_cpu(struct scheduler *all, unsigned cpu, double *idle) {
    double weights = 0;
    for (uint32_t at = all->head[cpu]; at; at = all->threads[at - 1].next) {
        struct container *own = &all->all[(at - 1) / MAX_THREADS];
        weights += own->is_throttled ? 0 : own->weight / own->runnable;
    }
    for (uint32_t at = all->head[cpu]; at; at = all->threads[at - 1].next) {
        unsigned index = (at - 1) / MAX_THREADS;
        struct container *own = &all->all[index];
        struct counters *counted = &all->counters[index];
        struct thread *thread = &all->threads[at - 1];
        if (own->is_throttled) {
            own->quiet = 0;
            bool is_first = true; /* of its threads on this CPU: time throttled is the CPU's */
            for (uint32_t other = thread->previous; other; other = all->threads[other - 1].previous)
                is_first &= (other - 1) / MAX_THREADS != index;
            counted->throttled += is_first;
            continue;
        }
        double part = own->weight / own->runnable / weights, need = need_of(all, at - 1);
        own->ran += part < need ? part : need;
        own->l3s |= (uint64_t)1 << all->l3s[cpu];
        if (thread->last != NONE && all->l3s[thread->last] != all->l3s[cpu])
            counted->crossings++;
        thread->last = (uint16_t)cpu;
        double waits = need - part;
        thread->waited = waits > LEAST ? (uint16_t)(thread->waited + (thread->waited < NONE)) : 0;
        if (waits > LEAST) {
            own->quiet *= has_sibling(all, at) ? 0 : part / need;
            blame(all, own, waits, idle);
        }
    }
}

/* As psi_trigger's window_update in kernel/sched/psi.c: what the last window had counts as long as this one is not over. */
static bool fires(struct scheduler *all, struct container *own, double value) {
    uint64_t elapsed = all->now - own->window_start;
    double growth = value - own->window_value;
    if (elapsed > own->window) {
        own->window_start = all->now;
        own->window_value = value;
        own->window_before = growth;
    } else
        growth += own->window_before * (double)(own->window - elapsed) / own->window;
    if (growth < own->threshold - LEAST || (own->has_fired && all->now - own->fired < own->window))
        return false;
    own->has_fired = true;
    own->fired = all->now;
    return true;
}

static void end_second(struct scheduler *all) {
    unsigned there[MAX_L3S] = {0};
    for (unsigned i = 0; i < all->containers; i++)
        for (uint64_t left = all->all[i].l3s; left; left &= left - 1)
            there[__builtin_ctzll(left)]++;
    for (unsigned i = 0; i < all->containers; i++) {
        struct container *own = &all->all[i];
        struct counters *counted = &all->counters[i];
        double used = counted->used - own->used_before;
        unsigned spans = (unsigned)__builtin_popcountll(own->l3s), others = 0;
        for (uint64_t left = own->l3s; left; left &= left - 1)
            others += there[__builtin_ctzll(left)] - 1;
        counted->spans += spans;
        counted->spans_used += spans * used;
        counted->neighbours += spans ? used * others / spans : 0;
        own->l3s = 0;
        own->used_before = counted->used;
    }
}

static void tick(struct scheduler *all, const uint8_t *offered, const float *ahead) {
    for (unsigned i = 0; i < all->containers; i++) {
        struct container *own = &all->all[i];
        if (!own->is_there)
            continue;
        if (all->now % PERIOD_TICKS == 0) {
            double quota = own->quota * PERIOD_TICKS;
            own->spent = own->spent > quota ? own->spent - quota : 0;
            own->is_throttled = own->quota > 0 && own->spent >= quota;
        }
        arrive(all, i, offered[i], (double)ahead[i]);
    }
    balance(all);
    double idle = count(all->idle);
    for (unsigned cpu = 0; cpu < all->cpus; cpu++)
        if (all->on[cpu])
            run_cpu(all, cpu, &idle);
    for (unsigned i = 0; i < all->containers; i++) {
        struct container *own = &all->all[i];
        struct counters *counted = &all->counters[i];
        if (!own->is_there)
            continue;
        count_waits(own, counted);
        counted->used += own->ran;
        counted->backlog -= own->ran;
        counted->backlog = counted->backlog < LEAST ? 0 : counted->backlog;
        counted->some += 1 - own->quiet;
        own->spent += own->ran;
        if (own->quota > 0 && own->spent >= own->quota * PERIOD_TICKS)
            own->is_throttled = true;
    }
    all->now++;
    if (all->now % SECOND_TICKS == 0)
        end_second(all);
}

unsigned scheduler_run(struct scheduler *all, unsigned ticks, const uint8_t *offered, const float *ahead, uint32_t *fired,
                       unsigned *fired_count) {
    *fired_count = 0;
    for (unsigned done = 0; done < ticks; done++) {
        tick(all, offered + (uint64_t)done * all->containers, ahead + (uint64_t)done * all->containers);
        for (unsigned i = 0; i < all->containers; i++) {
            struct container *own = &all->all[i];
            /* The kernel looks ten times a window. */
            if (own->is_there && own->threshold > 0 && all->now % (own->window < 10 ? 1 : own->window / 10) == 0 &&
                fires(all, own, all->counters[i].some))
                fired[(*fired_count)++] = i;
        }
        if (*fired_count)
            return done + 1;
    }
    return ticks;
}

/* ---------------------------------------------------------------- containers */

void scheduler_begin(struct scheduler *all, unsigned container, unsigned threads, double quota, double weight,
                     struct cpus set) {
    struct container *own = &all->all[container];
    scheduler_end(all, container);
    memset(own, 0, sizeof *own);
    memset(&all->counters[container], 0, sizeof all->counters[container]);
    for (unsigned i = 0; i < MAX_THREADS; i++)
        all->threads[container * MAX_THREADS + i] = (struct thread){0, 0, NONE, NONE, 0};
    own->is_there = true;
    own->threads = threads < MAX_THREADS ? threads : MAX_THREADS;
    own->quota = quota;
    own->weight = weight;
    own->quiet = 1;
    scheduler_set(all, container, set, true);
}

void scheduler_end(struct scheduler *all, unsigned container) {
    struct container *own = &all->all[container];
    for (unsigned i = 0; i < own->runnable; i++)
        leave(all, container * MAX_THREADS + i);
    own->is_there = false;
    own->runnable = 0;
    own->ran = 0;
    own->quiet = 1;
}

void scheduler_set(struct scheduler *all, unsigned container, struct cpus set, bool is_whole) {
    struct container *own = &all->all[container];
    unsigned size = count(set);
    if (!size)
        return;
    own->set = set;
    if (own->is_short && (is_whole || size > own->size))
        note_short(all, container, true);
    own->size = size;
    own->is_whole = is_whole;
    for (unsigned i = 0; i < own->runnable; i++) {
        uint32_t index = container * MAX_THREADS + i;
        if (!holds(&set, all->threads[index].cpu)) {
            leave(all, index);
            wake(all, own, index);
        }
    }
}

void scheduler_trigger(struct scheduler *all, unsigned container, double threshold, unsigned window) {
    struct container *own = &all->all[container];
    own->threshold = threshold;
    own->window = window;
    own->window_start = all->now;
    own->window_value = all->counters[container].some;
    own->window_before = 0;
    own->has_fired = false;
}

const struct counters *scheduler_counters(const struct scheduler *all) { return all->counters; }

unsigned scheduler_shortages(struct scheduler *all, struct shortage *found, unsigned room) {
    unsigned some = all->shortage_count < room ? all->shortage_count : room;
    memcpy(found, all->shortages, some * sizeof *found);
    memmove(all->shortages, all->shortages + some, (all->shortage_count - some) * sizeof *found);
    all->shortage_count -= some;
    return some;
}

/* ---------------------------------------------------------------- the machine */

struct scheduler *scheduler_of(unsigned cpus, const uint16_t *l3s, const uint16_t *nodes, const uint16_t *mates,
                               unsigned containers, double wander, double sleep, uint64_t seed) {
    struct scheduler *made = cpus && cpus <= MAX_CPUS ? calloc(1, sizeof *made) : NULL;
    if (!made)
        return NULL;
    made->cpus = cpus;
    made->containers = containers;
    made->wander = wander;
    made->sleep = sleep;
    made->random = seed * 0x9e3779b97f4a7c15u + 0x1234567u;
    for (unsigned cpu = 0; cpu < cpus; cpu++) {
        if (l3s[cpu] >= MAX_L3S || nodes[cpu] >= MAX_L3S || mates[cpu] >= cpus) {
            scheduler_free(made);
            return NULL;
        }
        made->l3s[cpu] = l3s[cpu];
        made->nodes[cpu] = nodes[cpu];
        made->mates[cpu] = mates[cpu];
        put(&made->of_l3[l3s[cpu]], cpu);
        put(&made->of_node[nodes[cpu]], cpu);
        put(&made->idle, cpu);
        made->l3_count = l3s[cpu] >= made->l3_count ? l3s[cpu] + 1u : made->l3_count;
    }
    made->all = calloc(containers, sizeof *made->all);
    made->threads = calloc((size_t)containers * MAX_THREADS, sizeof *made->threads);
    made->counters = calloc(containers, sizeof *made->counters);
    made->shortages = calloc(SHORTAGES, sizeof *made->shortages);
    if (made->all && made->threads && made->counters && made->shortages)
        return made;
    scheduler_free(made);
    return NULL;
}

void scheduler_free(struct scheduler *all) {
    if (!all)
        return;
    free(all->all);
    free(all->threads);
    free(all->counters);
    free(all->shortages);
    free(all);
}
