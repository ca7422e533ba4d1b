/*
 * suggest.c - "did you mean": edit distance over short ASCII words (verbs, options, choices).
 * Pure functions.
 */
#include "cli/cli.h"

#define WORD_MAX 64

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static int min2(int a, int b)
{
    return a < b ? a : b;
}

int cli_distance(const char *a, const char *b)
{
    int na = (int)strnlen(a, WORD_MAX), nb = (int)strnlen(b, WORD_MAX);
    /* three rows: the swap of neighbours looks two back */
    int rows[3][WORD_MAX + 1];
    for (int j = 0; j <= nb; j++)
        rows[0][j] = j;
    for (int i = 1; i <= na; i++) {
        int *cur = rows[i % 3], *up = rows[(i + 2) % 3], *up2 = rows[(i + 1) % 3];
        cur[0] = i;
        for (int j = 1; j <= nb; j++) {
            int cost = lower(a[i - 1]) != lower(b[j - 1]);
            int d = min2(up[j] + 1, cur[j - 1] + 1);
            d = min2(d, up[j - 1] + cost);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]))
                d = min2(d, up2[j - 2] + 1);
            cur[j] = d;
        }
    }
    return rows[na % 3][nb];
}

void cli_guess_offer(struct cli_guess *g, const char *word, const char *candidate)
{
    size_t n = strlen(word), m = strlen(candidate);
    size_t longer = n > m ? n : m;
    if (longer == 0 || longer > WORD_MAX)
        return;
    int limit = longer < 4 ? 1 : (int)((longer + 2) / 3);
    int d = cli_distance(word, candidate);
    /* the beginning of a longer word ("temp" for "temperature") counts as one edit */
    if (n >= 3 && n < m && strncmp(word, candidate, n) == 0)
        d = min2(d, 1);
    if (d > limit || d >= (int)longer)
        return;
    if (!g->best || d < g->dist) {
        g->best = candidate;
        g->dist = d;
    }
}
