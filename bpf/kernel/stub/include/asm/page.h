/* bcc sizes its perf buffers by it; none are used here. */
#pragma once
#define PAGE_SIZE 4096
