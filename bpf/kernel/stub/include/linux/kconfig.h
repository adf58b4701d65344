/* What bcc asks of the kernel's configuration. */
#pragma once
#define CONFIG_BPF 1
#define CONFIG_BPF_SYSCALL 1
