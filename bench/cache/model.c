#include "model.h"

#include <stdlib.h>
#include <string.h>

static const unsigned ALL_WAYS = (1U << L3_WAYS) - 1;

/* tag is the line's number + 1: a zeroed entry is an empty one. */
struct l2_entry {
    uint64_t tag, used;
    bool exclusive; /* no other CPU has it: a store tells no other cache */
};

struct l3_entry {
    uint64_t tag, used;
    uint64_t holders; /* bit i: the i-th CPU of the CCX has it in its L2 */
    bool exclusive;   /* no other CCX has it */
};

struct machine {
    struct shape shape;
    unsigned ccxs;
    uint64_t l2_sets, l3_sets, now;
    struct l2_entry *l2; /* [cpu][set][way] */
    struct l3_entry *l3; /* [ccx][set][way] */
    unsigned *class_of;  /* [cpu] */
    unsigned *masks;     /* [ccx][class] */
};

static uint64_t sets(uint64_t bytes, unsigned ways) {
    uint64_t lines = bytes >> LINE_SHIFT;
    uint64_t count = lines / ways;
    return count != 0 && count * ways == lines && (count & (count - 1)) == 0 ? count : 0;
}

struct machine *machine_of(struct shape shape) {
    uint64_t l2_sets = sets(shape.l2_bytes, L2_WAYS), l3_sets = sets(shape.l3_bytes, L3_WAYS);
    if (!shape.cpus || !shape.cpus_per_ccx || shape.cpus_per_ccx > 64 || !shape.ccxs_per_socket || !l2_sets || !l3_sets)
        return NULL;
    struct machine *made = calloc(1, sizeof *made);
    if (!made)
        return NULL;
    made->shape = shape;
    made->ccxs = (shape.cpus + shape.cpus_per_ccx - 1) / shape.cpus_per_ccx;
    made->l2_sets = l2_sets;
    made->l3_sets = l3_sets;
    made->l2 = calloc(shape.cpus * l2_sets * L2_WAYS, sizeof *made->l2);
    made->l3 = calloc(made->ccxs * l3_sets * L3_WAYS, sizeof *made->l3);
    made->class_of = calloc(shape.cpus, sizeof *made->class_of);
    made->masks = calloc(made->ccxs * CLASSES, sizeof *made->masks);
    if (!made->l2 || !made->l3 || !made->class_of || !made->masks) {
        machine_free(made);
        return NULL;
    }
    for (unsigned i = 0; i < made->ccxs * CLASSES; i++)
        made->masks[i] = ALL_WAYS;
    return made;
}

void machine_free(struct machine *machine) {
    free(machine->l2);
    free(machine->l3);
    free(machine->class_of);
    free(machine->masks);
    free(machine);
}

void machine_empty(struct machine *machine) {
    memset(machine->l2, 0, machine->shape.cpus * machine->l2_sets * L2_WAYS * sizeof *machine->l2);
    memset(machine->l3, 0, machine->ccxs * machine->l3_sets * L3_WAYS * sizeof *machine->l3);
}

bool machine_set_class(struct machine *machine, unsigned cpu, unsigned class) {
    if (class >= CLASSES)
        return false;
    machine->class_of[cpu] = class;
    return true;
}

bool machine_set_mask(struct machine *machine, unsigned cpu, unsigned class, uint64_t mask) {
    if (class >= CLASSES || !(mask & ALL_WAYS))
        return false;
    machine->masks[cpu / machine->shape.cpus_per_ccx * CLASSES + class] = mask & ALL_WAYS;
    return true;
}

static struct l2_entry *l2_set(struct machine *machine, unsigned cpu, uint64_t line) {
    return machine->l2 + (cpu * machine->l2_sets + (line & (machine->l2_sets - 1))) * L2_WAYS;
}

static struct l3_entry *l3_set(struct machine *machine, unsigned ccx, uint64_t line) {
    return machine->l3 + (ccx * machine->l3_sets + (line & (machine->l3_sets - 1))) * L3_WAYS;
}

static struct l2_entry *l2_find(struct machine *machine, unsigned cpu, uint64_t line) {
    struct l2_entry *set = l2_set(machine, cpu, line);
    for (int way = 0; way < L2_WAYS; way++)
        if (set[way].tag == line + 1)
            return &set[way];
    return NULL;
}

static struct l3_entry *l3_find(struct machine *machine, unsigned ccx, uint64_t line) {
    struct l3_entry *set = l3_set(machine, ccx, line);
    for (int way = 0; way < L3_WAYS; way++)
        if (set[way].tag == line + 1)
            return &set[way];
    return NULL;
}

/* Takes a line out of the L2s of a CCX, all but one CPU's; the number of copies taken. */
static uint64_t drop_from_l2s(struct machine *machine, unsigned ccx, struct l3_entry *entry, unsigned but_cpu) {
    uint64_t dropped = 0;
    for (unsigned i = 0; i < machine->shape.cpus_per_ccx; i++) {
        unsigned cpu = ccx * machine->shape.cpus_per_ccx + i;
        if (!(entry->holders >> i & 1) || cpu == but_cpu)
            continue;
        struct l2_entry *copy = l2_find(machine, cpu, entry->tag - 1);
        if (copy)
            copy->tag = 0;
        entry->holders &= ~(1ULL << i);
        dropped++;
    }
    return dropped;
}

/* The L2s of a CCX keep their copies, and must ask before the next store. */
static void share_in_l2s(struct machine *machine, unsigned ccx, struct l3_entry *entry) {
    for (unsigned i = 0; i < machine->shape.cpus_per_ccx; i++) {
        if (!(entry->holders >> i & 1))
            continue;
        struct l2_entry *copy = l2_find(machine, ccx * machine->shape.cpus_per_ccx + i, entry->tag - 1);
        if (copy)
            copy->exclusive = false;
    }
}

/* Room for a line that a CPU fetches, in its CCX's L3 and in the ways of its class; what was there leaves the L2s above, too. */
static struct l3_entry *l3_room(struct machine *machine, unsigned cpu, uint64_t line) {
    unsigned ccx = cpu / machine->shape.cpus_per_ccx;
    unsigned mask = machine->masks[ccx * CLASSES + machine->class_of[cpu]];
    struct l3_entry *set = l3_set(machine, ccx, line), *oldest = NULL;
    for (int way = 0; way < L3_WAYS; way++) {
        if (!(mask >> way & 1))
            continue;
        if (!set[way].tag) {
            oldest = &set[way];
            break;
        }
        if (!oldest || set[way].used < oldest->used)
            oldest = &set[way];
    }
    if (oldest->tag)
        drop_from_l2s(machine, ccx, oldest, machine->shape.cpus);
    *oldest = (struct l3_entry){.tag = line + 1};
    return oldest;
}

static struct l2_entry *l2_room(struct machine *machine, unsigned cpu, uint64_t line) {
    struct l2_entry *set = l2_set(machine, cpu, line), *oldest = set;
    for (int way = 0; way < L2_WAYS; way++) {
        if (!set[way].tag) {
            oldest = &set[way];
            break;
        }
        if (set[way].used < oldest->used)
            oldest = &set[way];
    }
    if (oldest->tag) {
        struct l3_entry *below = l3_find(machine, cpu / machine->shape.cpus_per_ccx, oldest->tag - 1);
        if (below)
            below->holders &= ~(1ULL << cpu % machine->shape.cpus_per_ccx);
    }
    *oldest = (struct l2_entry){.tag = line + 1};
    return oldest;
}

/* An L3 miss: asks the other CCXs, and counts where the line came from. */
static struct l3_entry *fetch(struct machine *machine, unsigned cpu, uint64_t line, struct counts *counts) {
    unsigned ccx = cpu / machine->shape.cpus_per_ccx;
    bool same_socket = false, another_socket = false;
    for (unsigned other = 0; other < machine->ccxs; other++) {
        struct l3_entry *theirs = other == ccx ? NULL : l3_find(machine, other, line);
        if (!theirs)
            continue;
        if (other / machine->shape.ccxs_per_socket == ccx / machine->shape.ccxs_per_socket)
            same_socket = true;
        else
            another_socket = true;
        share_in_l2s(machine, other, theirs);
        theirs->exclusive = false;
    }
    counts->l3_misses++;
    if (same_socket)
        counts->other_ccx++;
    else if (another_socket)
        counts->other_socket++;
    else
        counts->memory++;
    struct l3_entry *entry = l3_room(machine, cpu, line);
    entry->exclusive = !same_socket && !another_socket;
    return entry;
}

void machine_access(struct machine *machine, unsigned cpu, uint64_t line, bool store, struct counts *counts) {
    unsigned ccx = cpu / machine->shape.cpus_per_ccx;
    uint64_t own_bit = 1ULL << cpu % machine->shape.cpus_per_ccx;
    uint64_t now = ++machine->now;
    counts->accesses++;

    /* 1. The CPU's own L2 has it, and nothing has to be asked. */
    struct l2_entry *mine = l2_find(machine, cpu, line);
    if (mine && (!store || mine->exclusive)) {
        mine->used = now;
        return;
    }

    /* 2. The CCX's L3 has it, or another CCX, or memory. */
    struct l3_entry *below = l3_find(machine, ccx, line);
    if (!mine)
        counts->l2_misses++;
    if (!below)
        below = fetch(machine, cpu, line, counts);
    below->used = now;
    if (!mine) {
        share_in_l2s(machine, ccx, below);
        mine = l2_room(machine, cpu, line);
        mine->exclusive = below->exclusive && !below->holders;
        below->holders |= own_bit;
    }
    mine->used = now;

    /* 3. A store: all other copies go. */
    if (!store || mine->exclusive)
        return;
    counts->invalidated += drop_from_l2s(machine, ccx, below, cpu);
    for (unsigned other = 0; other < machine->ccxs; other++) {
        struct l3_entry *theirs = other == ccx || below->exclusive ? NULL : l3_find(machine, other, line);
        if (!theirs)
            continue;
        counts->invalidated += 1 + drop_from_l2s(machine, other, theirs, machine->shape.cpus);
        theirs->tag = 0;
    }
    below->exclusive = mine->exclusive = true;
}
