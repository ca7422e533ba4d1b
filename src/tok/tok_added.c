/*
 * tok_added.c - finds added tokens in text: leftmost, then longest, then on from its end. A trie
 * whose nodes hold their edges sorted by byte; a table of first bytes skips plain text.
 */
#include "tok_int.h"

/* The child of `node` along byte b, or 0 (the root is nobody's child). */
static uint32_t child(const struct tok_trie *tr, uint32_t node, uint8_t b)
{
    uint32_t lo = tr->node[node].edge, hi = lo + tr->node[node].n_edge;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2, e = tr->edge[mid];
        if (e >> 24 == b)
            return e & 0xFFFFFF;
        if (e >> 24 < b)
            lo = mid + 1;
        else
            hi = mid;
    }
    return 0;
}

int32_t tok_trie_find(const struct tok_trie *tr, struct str s, size_t *from, size_t *end)
{
    const uint8_t *p = (const uint8_t *)s.p;
    if (tr->n_node == 0)
        return -1;
    for (size_t i = *from; i < s.n; i++) {
        if (!tr->start[p[i]])
            continue;
        int32_t best = -1;
        uint32_t node = 0;
        for (size_t j = i; j < s.n && (node = child(tr, node, p[j])) != 0; j++)
            if (tr->node[node].added >= 0) {
                best = tr->node[node].added;
                *end = j + 1;
            }
        if (best >= 0) {
            *from = i;
            return best;
        }
    }
    return -1;
}
