/*
 * bench_report.c - see bench_report.h. Formatting only; nothing is measured here.
 */
#include "cli/bench_report.h"

#include <stdio.h>
#include <time.h>

#include "base/json.h"
#include "cli/cli.h"

static const struct bench_roof *roof_of(const struct bench_report *r, int32_t threads)
{
    for (int i = 0; i < r->n_roof; i++)
        if (r->roofs[i].threads == threads)
            return &r->roofs[i];
    return NULL;
}

static double read_median(const struct bench_report *r, int32_t threads)
{
    const struct bench_roof *f = roof_of(r, threads);
    return f ? spread_of(f->read, f->n_sample).median : 0;
}

/* The best round: interference can only lower a pure arithmetic loop. */
static double peak_best(const struct bench_report *r, int32_t threads)
{
    const struct bench_roof *f = roof_of(r, threads);
    return f ? spread_of(f->peak, f->n_sample).max : 0;
}

/* What a row uses of the two roofs, as fractions; negative = not known or not meant. */
static double share_of_read(const struct bench_report *r, const struct bench_row *w)
{
    double roof = read_median(r, w->threads);
    if (!w->decode || roof <= 0)
        return -1;
    return spread_of(w->samples, w->n_sample).median * w->bytes_per_token / roof;
}

static double share_of_peak(const struct bench_report *r, const struct bench_row *w)
{
    double roof = peak_best(r, w->threads);
    if (roof <= 0)
        return -1;
    return spread_of(w->samples, w->n_sample).median * w->ops_per_token / roof;
}

static void percent(char out[16], double share)
{
    if (share < 0)
        snprintf(out, 16, "-");
    else
        snprintf(out, 16, "%.1f %%", share * 100);
}

static void test_name(char out[32], const struct bench_row *w)
{
    int n = snprintf(out, 32, "%s %d", w->decode ? "decode" : "prefill", w->n);
    if (w->batch > 1)
        snprintf(out + n, 32 - (size_t)n, " x%d", w->batch);
}

/* Of one decode step; negative = not meant. */
static double step_ms(const struct bench_row *w)
{
    double rate = spread_of(w->samples, w->n_sample).median;
    return w->decode && rate > 0 ? 1000.0 * (w->batch > 1 ? w->batch : 1) / rate : -1;
}

static void facts(const struct bench_report *r, struct buf *out, const char *bullet)
{
    char when[40] = "";
    struct tm tm;
    time_t t = (time_t)r->when_unix;
    if (gmtime_r(&t, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &tm);
    buf_addf(out, "%squern " QUERN_VERSION ", %s\n", bullet, when);
    buf_addf(out, "%smodel %s: %s, %.1f M parameters, %.2f bits per weight, ", bullet,
             r->info->name, r->info->family, (double)r->info->n_param / 1e6,
             r->info->bits_per_weight);
    cli_size_text(out, r->info->weight_bytes);
    buf_addz(out, " of weights, ");
    cli_size_text(out, r->info->step_bytes);
    buf_addf(out, " read per token\n%scpu %s, %d CPUs usable, kernels %s, arithmetic %s, KV %s\n",
             bullet, r->cpu, r->n_cpu, r->info->isa, r->info->arith, r->info->kv_format);
    buf_addf(out, "%sload average %.2f before, %.2f after; %d rounds, configurations interleaved\n",
             bullet, r->load_before[0], r->load_after[0], r->repeat);
    for (int i = 0; i < r->n_roof; i++) {
        const struct bench_roof *f = &r->roofs[i];
        struct spread s = spread_of(f->read, f->n_sample);
        buf_addf(out, "%smemory read, %d thread%s: %.1f GB/s (%.1f to %.1f, buffer ", bullet,
                 f->threads, f->threads == 1 ? "" : "s", s.median / 1e9, s.min / 1e9, s.max / 1e9);
        cli_size_text(out, r->roof_bytes);
        buf_addc(out, ')');
        double peak = peak_best(r, f->threads);
        if (peak > 0)
            buf_addf(out, "; 8-bit integer peak %.0f GOP/s", peak / 1e9);
        buf_addc(out, '\n');
    }
}

static void footnote(const struct bench_report *r, struct buf *out)
{
    buf_addz(out, "\nMAD: median absolute deviation. Bandwidth: bytes of weights and KV a decoded "
                  "token reads,\nover the measured read speed. Peak: multiply-adds of the weights "
                  "over the measured peak;\nattention is not counted.\n");
    if (r->cache_bytes > 0 && r->info->step_bytes < 2 * r->cache_bytes) {
        buf_addz(out, "This model's weights fit the last-level cache (");
        cli_size_text(out, r->cache_bytes);
        buf_addz(out, ") in good part:\ntheir share of the memory's speed can be above 100 %.\n");
    }
}

static void write_rows(const struct bench_report *r, bool markdown, struct buf *out)
{
    if (markdown)
        buf_addz(out,
                 "\n| threads | test | depth | tokens/s | min | max | MAD | ms/step | of "
                 "bandwidth | of peak |\n|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|\n");
    else
        buf_addf(out, "\n%7s  %-14s %6s %10s %10s %10s %8s %7s %9s %8s\n", "threads", "test",
                 "depth", "tokens/s", "min", "max", "MAD", "ms/step", "bandwidth", "peak");
    for (int i = 0; i < r->n_row; i++) {
        const struct bench_row *w = &r->rows[i];
        struct spread s = spread_of(w->samples, w->n_sample);
        char name[32], ms[16] = "-", bw[16], pk[16];
        test_name(name, w);
        percent(bw, share_of_read(r, w));
        percent(pk, share_of_peak(r, w));
        if (step_ms(w) >= 0)
            snprintf(ms, sizeof ms, "%.2f", step_ms(w));
        buf_addf(out,
                 markdown ? "| %d | %s | %d | %.2f | %.2f | %.2f | %.2f | %s | %s | %s |\n"
                          : "%7d  %-14s %6d %10.2f %10.2f %10.2f %8.2f %7s %9s %8s\n",
                 w->threads, name, w->depth, s.median, s.min, s.max, s.mad, ms, bw, pk);
    }
}

/* Of one sequence's decode step, the quickest that was measured; 0 = none was. */
static double quickest_step_us(const struct bench_report *r)
{
    double best = 0;
    for (int i = 0; i < r->n_row; i++) {
        double ms = r->rows[i].batch > 1 ? -1 : step_ms(&r->rows[i]);
        if (ms > 0 && (best == 0 || ms * 1e3 < best))
            best = ms * 1e3;
    }
    return best;
}

static void write_mask(const struct bench_report *r, struct buf *out)
{
    const struct bench_mask *m = &r->mask;
    double step = quickest_step_us(r);
    if (m->n_token == 0)
        return;
    buf_addf(out,
             "\nJSON Schema, an answer of %d tokens: a token's mask and draw cost %.0f us more in "
             "the first\nanswer (%.0f at most), %.0f us in later ones",
             m->n_token, m->first_us, m->worst_us, m->again_us);
    if (step > 0)
        buf_addf(out, ": %.1f %% and %.1f %% of the quickest step", 100 * m->first_us / step,
                 100 * m->again_us / step);
    buf_addf(out, ".\nBefore the first: %.1f ms.\n", m->start_us / 1e3);
}

static void mask_json(struct jw *w, const struct bench_report *r)
{
    const struct bench_mask *m = &r->mask;
    double step = quickest_step_us(r);
    if (m->n_token == 0)
        return;
    jw_key(w, "mask");
    jw_obj(w);
    jw_ki64(w, "tokens", m->n_token);
    jw_kreal(w, "first_us", m->first_us);
    jw_kreal(w, "worst_us", m->worst_us);
    jw_kreal(w, "again_us", m->again_us);
    jw_kreal(w, "start_us", m->start_us);
    if (step > 0) {
        jw_kreal(w, "first_share_of_step", m->first_us / step);
        jw_kreal(w, "again_share_of_step", m->again_us / step);
    }
    jw_obj_end(w);
}

static void stats_json(struct jw *w, const char *key, const double *v, int n)
{
    struct spread s = spread_of(v, n);
    jw_key(w, key);
    jw_obj(w);
    jw_kreal(w, "median", s.median);
    jw_kreal(w, "min", s.min);
    jw_kreal(w, "max", s.max);
    jw_kreal(w, "mad", s.mad);
    jw_obj_end(w);
}

static void reals_json(struct jw *w, const char *key, const double *v, int n)
{
    jw_key(w, key);
    jw_arr(w);
    for (int i = 0; i < n; i++)
        jw_real(w, v[i]);
    jw_arr_end(w);
}

static void machine_json(struct jw *w, const struct bench_report *r)
{
    jw_key(w, "machine");
    jw_obj(w);
    jw_kstrz(w, "cpu", r->cpu);
    jw_ki64(w, "cpus", r->n_cpu);
    jw_kstrz(w, "isa", r->info->isa);
    reals_json(w, "load_before", r->load_before, 3);
    reals_json(w, "load_after", r->load_after, 3);
    jw_ki64(w, "last_level_cache_bytes", r->cache_bytes);
    jw_ki64(w, "read_buffer_bytes", r->roof_bytes);
    jw_key(w, "roofs");
    jw_arr(w);
    for (int i = 0; i < r->n_roof; i++) {
        const struct bench_roof *f = &r->roofs[i];
        jw_obj(w);
        jw_ki64(w, "threads", f->threads);
        stats_json(w, "read_bytes_s", f->read, f->n_sample);
        stats_json(w, "peak_ops_s", f->peak, f->n_sample);
        reals_json(w, "read_samples", f->read, f->n_sample);
        reals_json(w, "peak_samples", f->peak, f->n_sample);
        jw_obj_end(w);
    }
    jw_arr_end(w);
    jw_obj_end(w);
}

static void model_json(struct jw *w, const struct qn_model_info *m)
{
    jw_key(w, "model");
    jw_obj(w);
    jw_kstrz(w, "name", m->name);
    jw_kstrz(w, "family", m->family);
    jw_kstrz(w, "arith", m->arith);
    jw_kstrz(w, "kv_format", m->kv_format);
    jw_ki64(w, "parameters", m->n_param);
    jw_ki64(w, "weight_bytes", m->weight_bytes);
    jw_ki64(w, "step_bytes", m->step_bytes);
    jw_ki64(w, "kv_token_bytes", m->kv_token_bytes);
    jw_ki64(w, "seq_state_bytes", m->seq_state_bytes);
    jw_kreal(w, "bits_per_weight", m->bits_per_weight);
    jw_obj_end(w);
}

static void row_json(struct jw *w, const struct bench_report *r, const struct bench_row *row)
{
    double read = share_of_read(r, row), peak = share_of_peak(r, row);
    jw_obj(w);
    jw_kstrz(w, "kind", row->decode ? "decode" : "prefill");
    jw_ki64(w, "tokens", row->n);
    jw_ki64(w, "depth", row->depth);
    jw_ki64(w, "threads", row->threads);
    if (row->decode) {
        jw_ki64(w, "batch", row->batch > 1 ? row->batch : 1);
        jw_kreal(w, "step_ms", step_ms(row));
    }
    stats_json(w, "tok_s", row->samples, row->n_sample);
    reals_json(w, "samples", row->samples, row->n_sample);
    if (row->decode)
        jw_kreal(w, "bytes_per_token", row->bytes_per_token);
    jw_kreal(w, "ops_per_token", row->ops_per_token);
    if (read >= 0)
        jw_kreal(w, "share_of_read", read);
    if (peak >= 0)
        jw_kreal(w, "share_of_peak", peak);
    jw_obj_end(w);
}

static void write_json(const struct bench_report *r, struct buf *out)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    jw_kstrz(&w, "version", QUERN_VERSION);
    jw_ki64(&w, "time", r->when_unix);
    jw_ki64(&w, "repeat", r->repeat);
    model_json(&w, r->info);
    machine_json(&w, r);
    jw_key(&w, "results");
    jw_arr(&w);
    for (int i = 0; i < r->n_row; i++)
        row_json(&w, r, &r->rows[i]);
    jw_arr_end(&w);
    mask_json(&w, r);
    jw_obj_end(&w);
    buf_addc(out, '\n');
}

void bench_report_write(const struct bench_report *r, enum bench_format f, struct buf *out)
{
    if (f == BENCH_JSON) {
        write_json(r, out);
        return;
    }
    facts(r, out, f == BENCH_MARKDOWN ? "- " : "");
    write_rows(r, f == BENCH_MARKDOWN, out);
    write_mask(r, out);
    footnote(r, out);
}
