/* QEMU's TCG plugin: every load and store of every virtual CPU goes through the model of the caches.
 *
 * Arguments: out=FILE (JSON, one object a line), cpus, ccx (CPUs a CCX), socket (CCXs a socket), l2 and l3 (bytes), asleep=1, idle=0.
 * A program begins counting with a store to MARK and ends it with one to MARK + 64, which writes a line; the addresses are
 * virtual, so the program maps the page there (MAP_FIXED). The caches are modelled all the time: counting starts warm.
 * asleep=1: only from a store to MARK + 128 on, when they are empty, to the end of counting. Before and after it an access costs
 * little more than the call. idle=0 (a whole machine, x86-64): what a CPU does between two halts counts only if it comes to a user's
 * address, so not what the kernel does for itself on CPUs that have no task. (qemu_plugin_reset would take the call away, too; QEMU 7.2 aborts of it in this use.)
 *
 * What the guest's kernel writes of classes of service is heard where QEMU tells of it (tests/vm, the QEMU that has resctrl):
 * IA32_PQR_ASSOC is the class and the monitoring group of the task that a CPU goes on with, IA32_L3_QOS_MASK_n the ways of class n
 * in the CPU's L3. Where the program that ends counting is in a monitoring group, only what that group's tasks did is written.
 *
 * Debian's QEMU comes without qemu-plugin.h: what is used of it is declared here, by the names of its public interface,
 * version 1 (https://www.qemu.org/docs/master/devel/tcg-plugins.html).
 */
#include "model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORTED __attribute__((visibility("default")))

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
struct qemu_info; /* qemu_info_t: not looked at */
enum { NO_REGISTERS = 0, LOADS_AND_STORES = 3 };

const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *insn);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *insn);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int registers, void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *block);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *block, size_t index);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t id, void (*)(qemu_plugin_id_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_mem_cb(
    struct qemu_plugin_insn *, void (*)(unsigned, qemu_plugin_meminfo_t, uint64_t, void *), int registers, int which, void *);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t id, void (*)(qemu_plugin_id_t, void *), void *);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t info);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t info);
struct qemu_plugin_hwaddr *qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t info, uint64_t address);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr *);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr *);
/* Not QEMU's own: a QEMU that has it calls it with each write to a model-specific register. */
extern void (*qemu_plugin_msr_written)(unsigned cpu, uint32_t number, uint64_t value) __attribute__((weak));

EXPORTED int qemu_plugin_version = 1;

static const uint64_t MARK = 0x6d61726b0000; /* "mark" */
enum { BEGIN = 0, END = 64, WAKE = 128 };
static const uint64_t USERS_END = 1ULL << 47;
static const uint8_t HALT = 0xf4;
enum { PQR_ASSOC = 0xc8f, L3_MASKS = 0xc90, GROUPS = 1 << 10 }; /* a group's number (RMID) has ten bits, a class's lies above 32 */

static struct machine *machine;
static struct shape shape = {.cpus = 128, .cpus_per_ccx = 8, .ccxs_per_socket = 8, .l2_bytes = 512 << 10, .l3_bytes = 8 << 20};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* over all below: CPUs may be threads */
static struct counts since_start, at_begin;
static struct counts *unclear; /* of each CPU: since it halted, if it has come to no user's address */
static bool *has_a_task;
static struct counts of_group[GROUPS], of_group_at_begin[GROUPS];
static unsigned *group_of; /* of each CPU: 0 is none */
static unsigned counts_idle = 1; /* idle=0 */
static bool counting;
static atomic_bool asleep;
static unsigned sleeps; /* asleep=1 */
static unsigned marks;
static FILE *out;

static void write_counts(const char *what, const struct counts *to, const struct counts *from) {
    fprintf(out,
            "{\"counted\": \"%s\", \"accesses\": %llu, \"l2_misses\": %llu, \"l3_misses\": %llu, \"other_ccx\": %llu, "
            "\"other_socket\": %llu, \"memory\": %llu, \"invalidated\": %llu}\n",
            what, (unsigned long long)(to->accesses - from->accesses), (unsigned long long)(to->l2_misses - from->l2_misses),
            (unsigned long long)(to->l3_misses - from->l3_misses), (unsigned long long)(to->other_ccx - from->other_ccx),
            (unsigned long long)(to->other_socket - from->other_socket), (unsigned long long)(to->memory - from->memory),
            (unsigned long long)(to->invalidated - from->invalidated));
    fflush(out);
}

static void add(struct counts *to, const struct counts *more) {
    to->accesses += more->accesses;
    to->l2_misses += more->l2_misses;
    to->l3_misses += more->l3_misses;
    to->other_ccx += more->other_ccx;
    to->other_socket += more->other_socket;
    to->memory += more->memory;
    to->invalidated += more->invalidated;
}

static void mark(unsigned cpu, uint64_t address) {
    if (address == MARK + WAKE && asleep) {
        machine_empty(machine);
        asleep = false;
    } else if (address == MARK + BEGIN && !asleep) {
        at_begin = since_start;
        memcpy(of_group_at_begin, of_group, sizeof of_group);
        counting = true;
    } else if (address == MARK + END && counting) {
        char name[24];
        unsigned group = group_of[cpu];
        snprintf(name, sizeof name, "mark %u", ++marks);
        write_counts(name, group ? &of_group[group] : &since_start, group ? &of_group_at_begin[group] : &at_begin);
        counting = false;
        asleep = sleeps != 0;
    }
}

static void accessed(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t virtual, void *unused) {
    (void)unused;
    if (atomic_load_explicit(&asleep, memory_order_relaxed) && virtual != MARK + WAKE)
        return;
    uint64_t address = virtual;
    /* NULL in user mode, where the program's own addresses do. */
    struct qemu_plugin_hwaddr *hardware = qemu_plugin_get_hwaddr(info, virtual);
    if (hardware && qemu_plugin_hwaddr_is_io(hardware))
        return;
    if (hardware)
        address = qemu_plugin_hwaddr_phys_addr(hardware);
    if (cpu >= shape.cpus) {
        fprintf(stderr, "cache plugin: CPU %u used, cpus=%u said\n", cpu, shape.cpus);
        abort();
    }
    bool store = qemu_plugin_mem_is_store(info);
    uint64_t first = address >> LINE_SHIFT;
    uint64_t last = (address + (1ULL << qemu_plugin_mem_size_shift(info)) - 1) >> LINE_SHIFT;
    pthread_mutex_lock(&lock);
    bool counts = counts_idle || has_a_task[cpu];
    struct counts made = {0};
    for (uint64_t line = first; line <= last; line++)
        machine_access(machine, cpu, line, store, &made);
    add(counts ? &since_start : &unclear[cpu], &made);
    add(&of_group[group_of[cpu]], &made);
    if (!counts && virtual < USERS_END) {
        add(&since_start, &unclear[cpu]);
        unclear[cpu] = (struct counts){0};
        has_a_task[cpu] = true;
    }
    if (store)
        mark(cpu, virtual);
    pthread_mutex_unlock(&lock);
}

static void msr_written(unsigned cpu, uint32_t number, uint64_t value) {
    if (cpu >= shape.cpus || number < PQR_ASSOC || number >= L3_MASKS + CLASSES)
        return;
    pthread_mutex_lock(&lock);
    bool is_known = true;
    if (number == PQR_ASSOC) {
        is_known = machine_set_class(machine, cpu, (unsigned)(value >> 32));
        group_of[cpu] = value & (GROUPS - 1);
    } else
        is_known = machine_set_mask(machine, cpu, number - L3_MASKS, value);
    pthread_mutex_unlock(&lock);
    if (!is_known)
        fprintf(stderr, "cache plugin: CPU %u: %llx in MSR %x is not modelled\n", cpu, (unsigned long long)value, number);
}

static void halts(unsigned cpu, void *unused) {
    (void)unused;
    if (cpu >= shape.cpus)
        return;
    pthread_mutex_lock(&lock);
    unclear[cpu] = (struct counts){0};
    has_a_task[cpu] = false;
    pthread_mutex_unlock(&lock);
}

static void translated(qemu_plugin_id_t id, struct qemu_plugin_tb *block) {
    (void)id;
    for (size_t i = 0; i < qemu_plugin_tb_n_insns(block); i++) {
        struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, i);
        qemu_plugin_register_vcpu_mem_cb(instruction, accessed, NO_REGISTERS, LOADS_AND_STORES, NULL);
        bool is_halt = qemu_plugin_insn_size(instruction) == 1 && *(const uint8_t *)qemu_plugin_insn_data(instruction) == HALT;
        if (!counts_idle && is_halt)
            qemu_plugin_register_vcpu_insn_exec_cb(instruction, halts, NO_REGISTERS, NULL);
    }
}

static void ended(qemu_plugin_id_t id, void *unused) {
    (void)id;
    (void)unused;
    static const struct counts nothing;
    pthread_mutex_lock(&lock);
    write_counts("all", &since_start, &nothing);
    pthread_mutex_unlock(&lock);
}

/* One name=value; false: it is none of ours. */
static bool read_argument(const char *argument) {
    struct {
        const char *name;
        unsigned *count;
        uint64_t *bytes;
    } known[] = {{"cpus=", &shape.cpus, NULL},         {"ccx=", &shape.cpus_per_ccx, NULL},
                 {"socket=", &shape.ccxs_per_socket, NULL}, {"l2=", NULL, &shape.l2_bytes},
                 {"l3=", NULL, &shape.l3_bytes},            {"asleep=", &sleeps, NULL},
                 {"idle=", &counts_idle, NULL}};
    if (strncmp(argument, "out=", 4) == 0)
        return (out = fopen(argument + 4, "w")) != NULL;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t length = strlen(known[i].name);
        if (strncmp(argument, known[i].name, length) != 0)
            continue;
        char *end;
        unsigned long long value = strtoull(argument + length, &end, 10);
        if (known[i].count)
            *known[i].count = (unsigned)value;
        else
            *known[i].bytes = value;
        return *end == '\0' && end != argument + length;
    }
    return false;
}

EXPORTED int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv) {
    (void)info;
    for (int i = 0; i < argc; i++)
        if (!read_argument(argv[i])) {
            fprintf(stderr, "cache plugin: %s: not understood, or not to be written\n", argv[i]);
            return 1;
        }
    if (!out || !(machine = machine_of(shape))) {
        fprintf(stderr, "cache plugin: needs out=FILE, and sizes that are a power of two of lines a way\n");
        return 1;
    }
    unclear = calloc(shape.cpus, sizeof *unclear);
    has_a_task = calloc(shape.cpus, sizeof *has_a_task);
    group_of = calloc(shape.cpus, sizeof *group_of);
    if (!unclear || !has_a_task || !group_of)
        return 1;
    if (&qemu_plugin_msr_written)
        qemu_plugin_msr_written = msr_written;
    asleep = sleeps != 0;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
