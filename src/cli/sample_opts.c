/*
 * sample_opts.c - see sample_opts.h.
 */
#include "cli/sample_opts.h"

#include "base/rng.h"

static void real_over(const struct cli *c, const char *name, double v, float *io)
{
    if (cli_given(c, name))
        *io = (float)v;
}

enum qn_status sample_opts_apply(const struct cli *c, const struct sample_opts *o,
                                 const struct sample_params *defaults, struct gen_params *out,
                                 struct qn_err *err)
{
    struct sample_params p = *defaults;
    real_over(c, "temperature", o->temperature, &p.temperature);
    real_over(c, "top-p", o->top_p, &p.top_p);
    real_over(c, "min-p", o->min_p, &p.min_p);
    real_over(c, "repetition-penalty", o->repetition_penalty, &p.repetition_penalty);
    real_over(c, "presence-penalty", o->presence_penalty, &p.presence_penalty);
    real_over(c, "frequency-penalty", o->frequency_penalty, &p.frequency_penalty);
    if (cli_given(c, "top-k"))
        p.top_k = (int32_t)o->top_k;
    /* 53 bits: reported seeds can be given back to --seed, and JSON readers keep them exact */
    p.seed = cli_given(c, "seed") ? (uint64_t)o->seed : rng_seed_fresh() >> 11;
    out->sample = p;
    out->max_tokens = cli_given(c, "max-tokens") ? (int32_t)o->max_tokens : -1;
    if (o->stop.n > GEN_STOP_MAX)
        QN_FAIL(err, QN_BAD_INPUT, "cli", "--stop: given %d times; at most %d are possible",
                o->stop.n, GEN_STOP_MAX);
    for (int i = 0; i < o->stop.n; i++) {
        out->stop[i] = str_of(o->stop.v[i]);
        if (out->stop[i].n == 0)
            QN_FAIL(err, QN_BAD_INPUT, "cli", "--stop: the text is empty");
    }
    out->n_stop = o->stop.n;
    return QN_OK;
}
