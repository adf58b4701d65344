/* Threads of containers on the CPUs of their cpusets, tick by tick (bench/demand/scheduler.py says what a tick is).
 *
 * Known simplifications: a CPU's time within a tick is divided by weight among the threads that are on it, the two threads
 * of a core are two whole CPUs, cpuset changes and migrations are free, and no load is balanced as long as no thread waits.
 */
#ifndef SCHEDULER_H
#define SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>

enum { WORDS = 4, MAX_CPUS = 64 * WORDS, MAX_L3S = 64, MAX_THREADS = 128, PERIOD_TICKS = 10, SECOND_TICKS = 100 };

struct cpus {
    uint64_t words[WORDS];
};

/* Of one container, since it began; in ticks of one CPU where nothing else is said. */
struct counters {
    double offered, used;
    double late_shrunk; /* of offered: not run in its tick, each tick counted once, as its set was too small (waited_set) */
    double late_whole;  /* the same in the largest set that it can have: others were there */
    double late_node, late_lag;
    double waited_set;  /* by its threads: none of its CPUs was idle, another CPU of the node was */
    double waited_node; /* no CPU of the node was idle */
    double waited_lag;  /* one of its own CPUs was idle: the scheduler was too slow */
    double throttled;   /* at its quota, on all CPUs together (throttled_usec of cpu.stat) */
    double some;        /* ticks in which some thread waited or was throttled (PSI) */
    double backlog;     /* work that has come and is not done */
    double spans;       /* L3s on which it ran within a second, summed over seconds */
    double spans_used;  /* the same, each times the CPU time of that second */
    double neighbours;  /* other containers in an L3 within a second, a mean over its L3s times that CPU time */
    double crossings;   /* threads that ran on in another L3 */
};

/* A time in which what a container was offered did not fit into its set. grown: its set became larger; else it passed. */
struct shortage {
    uint32_t container, grown;
    uint64_t since, until;
};

struct scheduler;

/* l3s, nodes: of each CPU; mates: the other thread of its core, or itself. wander: the chance that a thread that wakes up
 * is drawn to a CPU of its set other than its last one; sleep: that one which runs sleeps within a tick and wakes up.
 * NULL: too many of something, or no memory. */
struct scheduler *scheduler_of(unsigned cpus, const uint16_t *l3s, const uint16_t *nodes, const uint16_t *mates,
                               unsigned containers, double wander, double sleep, uint64_t seed);
void scheduler_free(struct scheduler *all);

/* A container with this many threads begins on these CPUs. quota: CPUs, 0 = none; weight: cpu.shares. */
void scheduler_begin(struct scheduler *all, unsigned container, unsigned threads, double quota, double weight,
                     struct cpus set);
void scheduler_end(struct scheduler *all, unsigned container);
/* Its cpuset from now on. is_whole: no larger one is to be had, so that nothing counts as a shortage. */
void scheduler_set(struct scheduler *all, unsigned container, struct cpus set, bool is_whole);
/* A PSI trigger: this many waited ticks within window ticks; 0 = none. */
void scheduler_trigger(struct scheduler *all, unsigned container, double threshold, unsigned window);

/* Run ticks, each a row of offered (threads that have a tick of work, by container) and of ahead (the mean of what is
 * offered in the second that begins with it). Stops early behind a tick in which triggers fired; fired has room for all
 * containers. Returns the ticks that were run. */
unsigned scheduler_run(struct scheduler *all, unsigned ticks, const uint8_t *offered, const float *ahead, uint32_t *fired,
                       unsigned *fired_count);

const struct counters *scheduler_counters(const struct scheduler *all);
/* Up to room shortages that have ended, oldest first; they are forgotten. */
unsigned scheduler_shortages(struct scheduler *all, struct shortage *found, unsigned room);

#endif
