/* Caches of a machine of CCXs, line by line: a private L2 a CPU, an L3 a CCX, and writes that invalidate.
 *
 * An L3 has classes of service (Intel CAT, AMD and Hygon QoS): each CPU runs in one, and a line that a CPU's class fetches goes
 * into a way of that class's mask. A line is found in any way, whoever fetched it.
 *
 * Known simplifications: the L3 holds what the L2s above it hold (inclusive; a Zen core's L3 is a victim cache), the oldest
 * line of a set goes (of the ways of the mask), there is no prefetch and no time. The order of accesses is the order of the
 * calls.
 */
#ifndef CACHE_MODEL_H
#define CACHE_MODEL_H

#include <stdbool.h>
#include <stdint.h>

enum { LINE_SHIFT = 6, L2_WAYS = 8, L3_WAYS = 16, CLASSES = 16 };

struct shape {
    unsigned cpus, cpus_per_ccx, ccxs_per_socket;
    uint64_t l2_bytes, l3_bytes; /* of one CPU; of one CCX */
};

struct counts {
    uint64_t accesses;
    uint64_t l2_misses;
    uint64_t l3_misses;    /* = other_ccx + other_socket + memory */
    uint64_t other_ccx;    /* the line came from another CCX of the same socket */
    uint64_t other_socket; /* no CCX of this socket had it, one of another socket had */
    uint64_t memory;       /* no cache had it */
    uint64_t invalidated;  /* copies in other L2s and other CCXs' L3s that a write took away */
};

struct machine;

/* Every CPU runs in class 0, and every class may fill all ways. NULL: the shape is none (a zero, a size that is no power of two
 * times the ways, over 64 CPUs a CCX) or memory is short. */
struct machine *machine_of(struct shape shape);

void machine_free(struct machine *machine);

/* No cache holds a line; classes and masks stay. */
void machine_empty(struct machine *machine);

/* From now on a CPU (below shape.cpus) runs in this class. False: there is none of this number, and nothing changes. */
bool machine_set_class(struct machine *machine, unsigned cpu, unsigned class);

/* The ways (bit i: way i) that a class may fill in the L3 of this CPU; lines that lie in others stay there. False: the mask has
 * no way of the L3 or the class is none, and nothing changes. */
bool machine_set_mask(struct machine *machine, unsigned cpu, unsigned class, uint64_t mask);

/* One access of a CPU (below shape.cpus) to a line (address >> LINE_SHIFT); counts is added to. */
void machine_access(struct machine *machine, unsigned cpu, uint64_t line, bool store, struct counts *counts);

#endif
