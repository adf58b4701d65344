/* Which task makes a TCP connection: run on sock:inet_sock_set_state, a few times per connection, never per packet.
 *
 * No kernel structs: the fields of the tracepoint are read at the offsets that its own format file gives
 * (sock_diag.py passes them as AT_...).
 *
 * The client: at SYN_SENT it runs in connect(2), but has no port yet; the port is there when the same socket is
 * ESTABLISHED, which may be any task's softirq. So the task is kept by socket in between.
 * The server's end: SYN_RECV becomes ESTABLISHED when the client's ACK arrives, and a local client's ACK arrives in
 * the client's own thread, whatever NAT has made of the addresses. User space checks that it is a container's.
 */
#include <uapi/linux/bpf.h>

#define TCP_ESTABLISHED 1
#define TCP_SYN_SENT 2
#define TCP_SYN_RECV 3
#define TCP 6

struct ends {
    u8 local[16];
    u8 remote[16];
    u16 local_port;
    u16 remote_port;
};

struct task {
    u64 cgroup;
    u32 pid;
    u32 padding;
};

BPF_TABLE("lru_hash", u64, struct task, connecting, 8192);
BPF_TABLE("lru_hash", struct ends, struct task, openers, MOST_CONNECTIONS);
BPF_TABLE("lru_hash", struct ends, struct task, arrivals, MOST_CONNECTIONS);

#define FIELD(type, offset) (*(volatile type *)((char *)context + (offset)))

int crm_aff_state(void *context)
{
    if (FIELD(u16, AT_protocol) != TCP)
        return 0;
    int before = FIELD(int, AT_oldstate), now = FIELD(int, AT_newstate);
    u64 socket = FIELD(u64, AT_skaddr);
    struct task task = {
        .cgroup = bpf_get_current_cgroup_id(),
        .pid = bpf_get_current_pid_tgid() >> 32,
    };

    if (now == TCP_SYN_SENT) {
        connecting.update(&socket, &task);
        return 0;
    }
    if (now != TCP_ESTABLISHED) {
        if (before == TCP_SYN_SENT)
            connecting.delete(&socket);
        return 0;
    }
    struct ends ends = {
        .local_port = FIELD(u16, AT_sport),
        .remote_port = FIELD(u16, AT_dport),
    };
    __builtin_memcpy(ends.local, (char *)context + AT_saddr_v6, 16);
    __builtin_memcpy(ends.remote, (char *)context + AT_daddr_v6, 16);
    if (before == TCP_SYN_SENT) {
        struct task *opener = connecting.lookup(&socket);
        if (opener) {
            task = *opener;
            openers.update(&ends, &task);
            connecting.delete(&socket);
        }
    } else if (before == TCP_SYN_RECV && task.pid) {
        arrivals.update(&ends, &task);
    }
    return 0;
}
