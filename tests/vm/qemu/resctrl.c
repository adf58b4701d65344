/*
 * What QEMU's emulation lacks for the kernel's resctrl: the leaves of CPUID that announce allocation and monitoring of
 * caches and bandwidth, and the registers behind them. Included into target/i386/cpu.c (edit.py).
 *
 * Time is traffic: a CPU brings LINES_A_MS lines into its L3 in each millisecond, in the name of the RMID that is written
 * to it, whatever it does, also idle. They displace those of the other RMIDs, and an RMID has at most what the mask of its
 * CLOSID lets it fill. So llc_occupancy and mbm_*_bytes move as the kernel would see them move, with known rates.
 *
 * The numbers of CPUID and of the registers: Intel's manual, volume 3, chapter 18; AMD's 56375 (Platform Quality of Service).
 */

#include <math.h>

enum {
    LINE_BYTES = 64,
    CLOSIDS = 16,
    RMIDS = 32,
    COUNTED_RMIDS = 24, /* beyond: no counter of bandwidth is left, "Unavailable" */
    WAYS = 16,
    L3_LINES = (16 << 20) / LINE_BYTES,
    LINES_A_MS = 2500, /* 160 MB/s a CPU; an L3 is full after 105 ms */
    MOST_CPUS = 256,
    MOST_DOMAINS = 256,
};

typedef struct {
    uint32_t mask[CLOSIDS], is_set[CLOSIDS];
    int64_t since_ns;
    double lines[RMIDS], brought[RMIDS];
} L3Domain;

typedef struct {
    uint32_t rmid, closid, event, asked;
    L3Domain *domain;
} L3User;

static GMutex resctrl_lock;
static L3Domain l3_domains[MOST_DOMAINS];
static L3User l3_users[MOST_CPUS];

/* A guest has resctrl if its CPU is told to have the leaves: level=16,xlevel=0x80000020. */
static bool has_resctrl(CPUX86State *env)
{
    return env->cpuid_level >= 0x10;
}

static uint32_t resctrl_leaf_7_ebx(CPUX86State *env)
{
    return has_resctrl(env) ? 1u << 12 | 1u << 15 : 0;
}

static uint32_t resctrl_leaf_80000008_ebx(CPUX86State *env)
{
    return has_resctrl(env) && !IS_INTEL_CPU(env) ? 1u << 6 : 0;
}

/* False: the leaf is another's. Intel tells of bandwidth in leaf 0x10, AMD and Hygon in 0x80000020. */
static bool resctrl_cpuid(CPUX86State *env, uint32_t index, uint32_t count,
                          uint32_t *eax, uint32_t *ebx, uint32_t *ecx, uint32_t *edx)
{
    bool is_intel = IS_INTEL_CPU(env);

    if (!has_resctrl(env) || (index != 0xF && index != 0x10 && index != 0x80000020)) {
        return false;
    }
    *eax = *ebx = *ecx = *edx = 0;
    if (index == 0xF && count == 0) {
        *ebx = RMIDS - 1;
        *edx = 1 << 1;
    } else if (index == 0xF && count == 1) {
        *eax = 20; /* counters of 44 bits */
        *ebx = LINE_BYTES;
        *ecx = RMIDS - 1;
        *edx = 7;
    } else if (index == 0x10 && count == 0) {
        *ebx = is_intel ? 1 << 1 | 1 << 3 : 1 << 1;
    } else if (index == 0x10 && count == 1) {
        *eax = WAYS - 1;
        *ecx = 1 << 2; /* code and data */
        *edx = (is_intel ? CLOSIDS / 2 : CLOSIDS) - 1;
    } else if (index == 0x10 && count == 3 && is_intel) {
        *eax = 90 - 1;
        *ecx = 1 << 2; /* linear */
        *edx = CLOSIDS / 2 - 1;
    } else if (index == 0x80000020 && count == 0) {
        *ebx = is_intel ? 0 : 1 << 1;
    } else if (index == 0x80000020 && count == 1) {
        *eax = is_intel ? 0 : 11;
        *edx = is_intel ? 0 : CLOSIDS - 1;
    }
    return true;
}

static L3User *l3_user(CPUX86State *env)
{
    X86CPU *cpu = env_archcpu(env);
    CPUState *cs = env_cpu(env);
    L3User *user = &l3_users[cs->cpu_index % MOST_CPUS];
    X86CPUTopoInfo topology = {
        .dies_per_pkg = env->nr_dies, .cores_per_die = cs->nr_cores, .threads_per_core = cs->nr_threads,
    };

    if (!user->domain) {
        user->domain = &l3_domains[(cpu->apic_id >> apicid_die_offset(&topology)) % MOST_DOMAINS];
    }
    return user;
}

/* What all CPUs of a domain have brought since the last time, at once: each RMID's lines go to its part of what was brought. */
static void bring_lines(L3Domain *domain)
{
    int64_t now_ns = qemu_clock_get_ns(QEMU_CLOCK_VIRTUAL);
    double each = (now_ns - domain->since_ns) * (LINES_A_MS / 1e6);
    double brought[RMIDS] = { 0 }, most[RMIDS], all = 0;

    domain->since_ns = now_ns;
    for (int cpu = 0; cpu < MOST_CPUS; cpu++) {
        L3User *user = &l3_users[cpu];
        if (user->domain == domain) {
            uint32_t ways = domain->is_set[user->closid] ? ctpop32(domain->mask[user->closid]) : WAYS;
            brought[user->rmid] += each;
            most[user->rmid] = (double)L3_LINES / WAYS * ways;
            all += each;
        }
    }
    if (all <= 0) {
        return;
    }
    for (int rmid = 0; rmid < RMIDS; rmid++) {
        double part = L3_LINES * brought[rmid] / all;
        domain->lines[rmid] = part + (domain->lines[rmid] - part) * exp(-all / L3_LINES);
        if (brought[rmid] > 0) {
            domain->lines[rmid] = MIN(domain->lines[rmid], most[rmid]);
        }
        domain->brought[rmid] += brought[rmid];
    }
}

void resctrl_write(CPUX86State *env, uint32_t number, uint64_t value);
uint64_t resctrl_read(CPUX86State *env, uint32_t number);

/* Set by a plugin that models the caches (bench/cache/plugin.c). */
void (*qemu_plugin_msr_written)(unsigned cpu, uint32_t number, uint64_t value);

void resctrl_write(CPUX86State *env, uint32_t number, uint64_t value)
{
    bool is_mask = number >= 0xC90 && number < 0xC90 + CLOSIDS;

    if (qemu_plugin_msr_written) {
        qemu_plugin_msr_written(env_cpu(env)->cpu_index, number, value);
    }
    if (number != 0xC8D && number != 0xC8F && !is_mask) {
        return;
    }
    g_mutex_lock(&resctrl_lock);
    L3User *user = l3_user(env);
    if (number == 0xC8D) {
        user->event = value & 0xff;
        user->asked = value >> 32;
    } else if (number == 0xC8F) {
        bring_lines(user->domain);
        user->rmid = (value & 0x3ff) % RMIDS;
        user->closid = (value >> 32) % CLOSIDS;
    } else {
        user->domain->mask[number - 0xC90] = value;
        user->domain->is_set[number - 0xC90] = 1;
    }
    g_mutex_unlock(&resctrl_lock);
}

uint64_t resctrl_read(CPUX86State *env, uint32_t number)
{
    uint64_t value;

    if (number != 0xC8E) {
        return 0;
    }
    g_mutex_lock(&resctrl_lock);
    L3User *user = l3_user(env);
    bring_lines(user->domain);
    if (user->asked >= RMIDS || user->event < 1 || user->event > 3) {
        value = 1ull << 63; /* "Error" */
    } else if (user->event == 1) {
        value = user->domain->lines[user->asked];
    } else if (user->asked >= COUNTED_RMIDS) {
        value = 1ull << 62; /* "Unavailable" */
    } else {
        value = user->domain->brought[user->asked] * (user->event == 2 ? 1 : 0.75); /* a quarter is the other node's */
    }
    g_mutex_unlock(&resctrl_lock);
    return value;
}
