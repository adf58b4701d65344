/* bcc includes it; only the types are needed. */
#pragma once
#include <linux/types.h>
