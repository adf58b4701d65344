/* Reads LINES lines in a row, once before the marks and ROUNDS times between them: sweep LINES ROUNDS.
 *
 * sweep LINES: for ever, and without marks: a neighbour that leaves nothing in a cache that is smaller.
 */
#include "mark.h"

#include <stdint.h>
#include <string.h>

int main(int count, char **words) {
    if (count != 2 && count != 3)
        return 2;
    size_t bytes = (size_t)atol(words[1]) * 64;
    volatile char *memory = aligned_alloc(64, bytes);
    if (!memory)
        return 1;
    for (size_t at = 0; at < bytes; at += 64)
        memory[at] = 1;
    while (count == 2)
        for (size_t at = 0; at < bytes; at += 64)
            (void)memory[at];
    map_mark();
    begin();
    for (long rounds = atol(words[2]), round = 0; round < rounds; round++)
        for (size_t at = 0; at < bytes; at += 64)
            (void)memory[at];
    end();
    return 0;
}
