/*
 * tok_bench.c - encode speed of one tokenizer over one text file, and the time to open it.
 *   tok_bench DIR TEXT [CACHE] [ROUNDS]     prints one JSON object; see
 * docs/measurements/tokenizer.md Times are this thread's CPU time, so that a busy machine does not
 * count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/file.h"
#include "tok/tok.h"

static double now_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    struct qn_err err;
    struct tok *t = NULL;
    struct buf text = BUF_INIT;
    double ms[64], open_ms = 0;
    if (argc < 3)
        return 2;
    int rounds = argc > 4 ? atoi(argv[4]) : 5;
    if (rounds < 1 || rounds > 64)
        return 2;
    for (int i = 0; i < 3; i++) { /* the first may compile */
        tok_free(t);
        double at = now_ms();
        if (tok_open(argv[1], argc > 3 ? argv[3] : NULL, &t, &err) != QN_OK) {
            fprintf(stderr, "%s: %s\n", err.where, err.msg);
            return 1;
        }
        open_ms = now_ms() - at;
    }
    if (file_read(argv[2], 1 << 30, &text, &err) != QN_OK) {
        fprintf(stderr, "%s: %s\n", err.where, err.msg);
        return 1;
    }
    struct ids ids = {0};
    double first = 0;
    for (int i = 0; i <= rounds; i++) { /* round 0 has a cold cache */
        ids.n = 0;
        double at = now_ms();
        if (tok_encode(t, buf_str(&text), TOK_PARSE_SPECIAL, &ids, &err) != QN_OK)
            return 1;
        double took = now_ms() - at;
        if (i == 0)
            first = took;
        else
            ms[i - 1] = took;
    }
    qsort(ms, (size_t)rounds, sizeof *ms, by_value);
    printf("{\"bytes\": %zu, \"ids\": %zu, \"open_ms\": %.2f, \"cold_ms\": %.2f, \"median_ms\": "
           "%.2f}\n",
           text.n, ids.n, open_ms, first, ms[rounds / 2]);
    ids_free(&ids);
    buf_free(&text);
    tok_free(t);
    return 0;
}
