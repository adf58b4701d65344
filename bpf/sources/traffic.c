/* What talks to what: bytes between cgroups over TCP and UDP, and wakes between them. For bcc; UAPI types only.
 *
 * Every path of the two cgroup programs returns 1: 0 would drop the packet.
 */

#define ETHERTYPE_IPV4 0x0008 /* in network order, on little-endian machines */
#define ETHERTYPE_IPV6 0xDD86
#define WRITE_ONCE(place, value) (*(volatile __typeof__(place) *)&(place) = (value))

#include "traffic_counting.h"
#include "traffic_openers.h"
#include "traffic_remote.h"
#include "traffic_tcp.h"
#include "traffic_udp.h"
#include "traffic_wakes.h"

static __always_inline u8 protocol_of(struct __sk_buff *skb)
{
    u8 *data = (u8 *)(long)skb->data, *end = (u8 *)(long)skb->data_end;

    if (skb->protocol == ETHERTYPE_IPV4)
        return data + 10 <= end ? data[9] : 0;
    if (skb->protocol == ETHERTYPE_IPV6)
        return data + 7 <= end ? data[6] : 0;
    return 0;
}

int crm_aff_egress(struct __sk_buff *skb)
{
    u8 protocol = protocol_of(skb);

    if (protocol == TCP_NUMBER)
        tcp_sent(skb);
    else if (protocol == UDP_NUMBER)
        udp_sent(skb);
    return 1;
}

/* Costs TCP nothing, but hears only of receivers that ask for the sender's address. */
int crm_aff_udp4(struct bpf_sock_addr *context)
{
    struct udp_key source = {};

    source.address[2] = 0xffff0000;
    source.address[3] = context->user_ip4;
    udp_taken(context, &source);
    return 1;
}

int crm_aff_udp6(struct bpf_sock_addr *context)
{
    struct udp_key source = {};

    source.address[0] = context->user_ip6[0];
    source.address[1] = context->user_ip6[1];
    source.address[2] = context->user_ip6[2];
    source.address[3] = context->user_ip6[3];
    udp_taken(context, &source);
    return 1;
}

/* Attached while there is a sender whose receiver stays unknown: every packet that comes in pays for it. */
int crm_aff_ingress(struct __sk_buff *skb)
{
    if (protocol_of(skb) == UDP_NUMBER)
        udp_received(skb);
    return 1;
}

/* Never attached: user space runs it with a flow of conntrack for a packet. */
int crm_aff_path(struct __sk_buff *skb)
{
    return udp_path_told(skb);
}

int crm_aff_waking(struct bpf_raw_tracepoint_args *context)
{
    woken(context->args[0]);
    return 0;
}

/* At its very end, as an exiting task still wakes its parent: its pointer may soon be another's. */
int crm_aff_freed(struct bpf_raw_tracepoint_args *context)
{
    forget_task(context->args[0]);
    return 0;
}
