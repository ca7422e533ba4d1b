/*
 * kcheck.c - the kernel checker's program: options, the walk over levels and families, the report.
 *
 *   kcheck [--list] [--isa=NAME] [--func=GLOB] [--seed=N] [--repeat=N] [--self-test] [--bench]
 *          [--json]
 *
 * Exit status 0 when every case passed, 1 when one failed, 2 for a wrong option. The seed is
 * printed first and last; the same seed draws the same cases on every machine.
 */
#include "kcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/rng.h"

static void families(struct kc *c)
{
    kc_gemm(c);
    kc_float(c);
    kc_rows(c);
    kc_attn(c);
    kc_delta(c);
}

static const char *const usage =
    "kcheck: compares every kernel with the portable one and with double\n"
    "  --list        names of the kernels\n"
    "  --isa=NAME    only this level (generic, avx2, avx512, amx); default: all this machine has\n"
    "  --func=GLOB   only kernels whose name matches\n"
    "  --seed=N      seed of all inputs; default: fresh\n"
    "  --repeat=N    N rounds with seeds N, N+1, ...\n"
    "  --self-test   checks that broken kernels are found out\n"
    "  --bench       time the kernels instead\n"
    "  --json        report as JSON\n";

struct options {
    struct kc base;
    enum cpu_isa lo, hi;
    bool self_test;
};

static int parse(struct options *o, int argc, char **argv)
{
    o->hi = cpu_best();
    o->base.repeat = 1;
    o->base.seed = rng_seed_fresh() >> 32;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        char *end = NULL;
        struct qn_err err = {0};
        if (strcmp(a, "--list") == 0)
            o->base.list = true;
        else if (strcmp(a, "--bench") == 0)
            o->base.bench = true;
        else if (strcmp(a, "--self-test") == 0)
            o->self_test = true;
        else if (strcmp(a, "--json") == 0)
            o->base.json = true;
        else if (strncmp(a, "--func=", 7) == 0)
            o->base.glob = a + 7;
        else if (strncmp(a, "--seed=", 7) == 0)
            o->base.seed = strtoull(a + 7, &end, 0);
        else if (strncmp(a, "--repeat=", 9) == 0)
            o->base.repeat = (int)strtol(a + 9, &end, 10);
        else if (strncmp(a, "--isa=", 6) == 0) {
            if (cpu_isa_parse(a + 6, &o->lo, &err) != QN_OK) {
                fprintf(stderr, "kcheck: %s\n", err.msg);
                return 2;
            }
            o->hi = o->lo;
        } else {
            fputs(usage, stderr);
            return strcmp(a, "--help") == 0 ? 0 : 2;
        }
        if (end && (*end || o->base.repeat < 1)) {
            fprintf(stderr, "kcheck: %s is not a number that fits\n", a);
            return 2;
        }
    }
    return -1;
}

static void report(const struct kc *c, bool json, bool first)
{
    const char *isa = cpu_isa_name(c->k->isa);
    for (int i = 0; i < c->n_fn; i++) {
        const struct kc_fn *f = &c->fn[i];
        if (json)
            printf("%s\n  {\"isa\":\"%s\",\"kernel\":\"%s\",\"cases\":%ld,\"failed\":%ld,"
                   "\"worst_share_of_bound\":%.4g}",
                   first && i == 0 ? "" : ",", isa, f->name, f->cases, f->fails, f->worst);
        else
            printf("%-8s %-12s %6ld cases, %ld failed; largest error %.2f of its bound\n", isa,
                   f->name, f->cases, f->fails, f->worst);
    }
    fflush(stdout);
}

static long check_all(const struct options *o)
{
    long fails = 0;
    bool first = true;
    if (o->base.json)
        printf("{\"seed\":%llu,\"results\":[", (unsigned long long)o->base.seed);
    for (int r = 0; r < o->base.repeat; r++)
        for (enum cpu_isa l = o->lo; l <= o->hi; l++) {
            struct kc *c = malloc(sizeof *c);
            if (!c)
                exit(2);
            *c = o->base;
            c->seed += (uint64_t)r;
            c->judge = kernels_get(CPU_GENERIC);
            c->k = kernels_get(l);
            families(c);
            report(c, o->base.json, first);
            first = false;
            fails += c->fails;
            free(c);
        }
    if (o->base.json)
        printf("\n],\"failed\":%ld}\n", fails);
    return fails;
}

static void bench_all(const struct options *o)
{
    int n = 0;
    char model[128];
    cpu_model_name(model, sizeof model);
    if (o->base.json)
        printf("{\"cpu\":\"%s\",\"benches\":[", model);
    else
        printf("%s\n", model);
    for (enum cpu_isa l = o->lo; l <= o->hi; l++) {
        struct kc c = o->base;
        c.judge = kernels_get(CPU_GENERIC);
        c.k = kernels_get(l);
        c.n_json = n;
        kc_bench(&c);
        n = c.n_json;
    }
    if (o->base.json)
        printf("\n]}\n");
}

static void list(const struct options *o)
{
    struct kc c = o->base;
    c.judge = c.k = kernels_get(CPU_GENERIC);
    families(&c);
    for (int i = 0; i < c.n_fn; i++)
        puts(c.fn[i].name);
}

int main(int argc, char **argv)
{
    struct options o = {0};
    int rc = parse(&o, argc, argv);
    if (rc >= 0)
        return rc;
    cpu_fp_begin();
    if (o.base.list) {
        list(&o);
        return 0;
    }
    if (o.self_test) {
        int missed = kc_self_test(o.base.seed);
        printf("%d faults went unnoticed\n", missed);
        return missed != 0;
    }
    if (o.base.bench) {
        bench_all(&o);
        return 0;
    }
    if (!o.base.json)
        printf("seed %llu\n", (unsigned long long)o.base.seed);
    long fails = check_all(&o);
    if (!o.base.json)
        printf("%ld failed; seed %llu\n", fails, (unsigned long long)o.base.seed);
    return fails ? 1 : 0;
}
