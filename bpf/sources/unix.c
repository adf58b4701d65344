/* What is sent over unix sockets: bytes and messages between cgroups, by where their ends' users are. For bcc; UAPI types only.
 *
 * A socket's cgroup is that of what uses it. The sender's end knows the other one; which cgroup that is in shows when it is
 * read from or written to, mostly after the message: until then the message waits at the sender's end. A connection that is
 * made for one request, and its memory, may soon be another's: an end is known again by the number of its inode too.
 *
 * The kernel's description of itself says where the fields are (AT_...: bytes from a struct's beginning; AT_INODE: from
 * a struct socket's).
 */

#include "traffic_counting.h"

#define AF_UNIX 1
/* Not one of IP's. */
#define UNIX_NUMBER AF_UNIX
/* Ends that are remembered; those used least lately give way. 1.5 MB. */
#define UNIX_ENDS 16384

struct unix_end {
    u64 number; /* its inode's */
    u64 cgroup;
    s64 waiting_bytes; /* sent here, not yet told of any receiver */
    s64 waiting_messages;
};

BPF_TABLE("lru_hash", u64, struct unix_end, unix_ends, UNIX_ENDS);

static __always_inline u64 word_at(u64 place)
{
    u64 word = 0;

    bpf_probe_read_kernel(&word, sizeof(word), (void *)place);
    return word;
}

/* 0: not accepted yet, or closed. */
static __always_inline u64 number_of(u64 sock)
{
    u64 socket = word_at(sock + AT_SOCKET);

    return socket ? word_at(socket + AT_INODE) : 0;
}

/* The entry of an end, made if need be, with this user. */
static __always_inline struct unix_end *own(u64 sock, u64 number, u64 me)
{
    struct unix_end *end = unix_ends.lookup(&sock), fresh = {};

    if (end && end->number == number && end->cgroup == me)
        return end;
    fresh.number = number;
    fresh.cgroup = me;
    unix_ends.update(&sock, &fresh);
    return unix_ends.lookup(&sock);
}

/* What waits is counted as sent to cgroup 0, so that it is known how much is told of no receiver. */
static __always_inline void count_waiting(u64 sender, s64 bytes, s64 messages)
{
    add(sender, 0, UNIX_NUMBER, bytes, 0, messages);
}

/* What waits at this end was for this cgroup. Two CPUs may take the same at once: then it is below zero, and hides as much of
 * what comes next. */
static __always_inline void claim(struct unix_end *sender, u64 receiver)
{
    s64 bytes = sender->waiting_bytes, messages = sender->waiting_messages;

    if (messages <= 0)
        return;
    __sync_fetch_and_add(&sender->waiting_bytes, -bytes);
    __sync_fetch_and_add(&sender->waiting_messages, -messages);
    count_waiting(sender->cgroup, -bytes, -messages);
    if (sender->cgroup != receiver)
        add(sender->cgroup, receiver, UNIX_NUMBER, bytes, 0, messages);
}

/* This cgroup uses this socket: what waits at its peer was for it. The peer's entry, 0 where it is not known to be in use;
 * `mine` becomes the entry of the socket itself. */
static __always_inline struct unix_end *use(u64 sock, u64 me, struct unix_end **mine)
{
    u64 peer = word_at(sock + AT_PEER), number;
    struct unix_end *other;

    *mine = own(sock, number_of(sock), me);
    other = peer ? unix_ends.lookup(&peer) : 0;
    if (!other)
        return 0;
    number = number_of(peer);
    if (number && number != other->number)
        return 0;
    claim(other, me);
    return number ? other : 0;
}

static __always_inline void sent(u64 sock, s32 bytes)
{
    u64 me = bpf_get_current_cgroup_id();
    struct unix_end *mine, *other;

    if (bytes < 0)
        return;
    other = use(sock, me, &mine);
    if (other) {
        if (mine)
            claim(mine, other->cgroup);
        if (other->cgroup != me)
            add(me, other->cgroup, UNIX_NUMBER, bytes, 0, 1);
        return;
    }
    count_waiting(me, bytes, 1);
    if (mine) {
        __sync_fetch_and_add(&mine->waiting_bytes, (s64)bytes);
        __sync_fetch_and_add(&mine->waiting_messages, 1);
    }
}

static __always_inline void taken(u64 sock, s32 bytes)
{
    struct unix_end *mine;

    if (bytes >= 0)
        use(sock, bpf_get_current_cgroup_id(), &mine);
}

/* Where a function of unix sockets returns: its arguments, then what it returns. */

int crm_aff_ssent(struct bpf_raw_tracepoint_args *context)
{
    sent(word_at(context->args[0] + AT_SOCK), context->args[3]);
    return 0;
}

int crm_aff_staken(struct bpf_raw_tracepoint_args *context)
{
    taken(word_at(context->args[0] + AT_SOCK), context->args[4]);
    return 0;
}

int crm_aff_dsent(struct bpf_raw_tracepoint_args *context)
{
    sent(word_at(context->args[0] + AT_SOCK), context->args[3]);
    return 0;
}

int crm_aff_dtaken(struct bpf_raw_tracepoint_args *context)
{
    taken(word_at(context->args[0] + AT_SOCK), context->args[4]);
    return 0;
}

/* The tracepoints sock_send_length and sock_recv_length, of sockets of every family: socket, length, flags. */

static __always_inline bool is_unix(u64 sock)
{
    u16 family = 0;

    bpf_probe_read_kernel(&family, sizeof(family), (void *)(sock + AT_FAMILY));
    return family == AF_UNIX;
}

int crm_aff_asent(struct bpf_raw_tracepoint_args *context)
{
    if (is_unix(context->args[0]))
        sent(context->args[0], context->args[1]);
    return 0;
}

int crm_aff_ataken(struct bpf_raw_tracepoint_args *context)
{
    if (is_unix(context->args[0]))
        taken(context->args[0], context->args[1]);
    return 0;
}
