/* metric.c - see metric.h. The order is that of the reports. */
#include "bench/metric.h"

#include <string.h>

#define HI BETTER_HIGHER
#define LO BETTER_LOWER

/* clang-format off */
static const struct metric metrics[] = {
    {"decode_tps", "decode", "tok/s", HI, true},
    {"e2e_tps", "whole answer", "tok/s", HI, false},
    {"ttft_cold_ms", "first token, new prompt", "ms", LO, true},
    {"prefill_tps", "prompt reading", "tok/s", HI, true},
    {"ttft_warm_ms", "first token, same prompt again", "ms", LO, true},
    {"warm_cached_tokens", "of it from the cache", "tokens", HI, false},
    {"ctx_prompt_tokens", "long prompt", "tokens", BETTER_NEITHER, false},
    {"ctx_ttft_ms", "first token, long prompt", "ms", LO, true},
    {"ctx_prefill_tps", "reading the long prompt", "tok/s", HI, true},
    {"ctx_decode_tps", "decode behind it", "tok/s", HI, true},
    {"ctx_repeat_ttft_ms", "first token, long prompt again", "ms", LO, true},
    {"restart_ready_ms", "ready after a restart", "ms", LO, false},
    {"restart_ttft_ms", "first token after a restart", "ms", LO, true},
    {"restart_cached_tokens", "of it restored", "tokens", HI, false},
    {"concurrent_tps", "four at a time, together", "tok/s", HI, true},
    {"concurrent_stream_tps", "four at a time, each", "tok/s", HI, false},
    {"ready_ms", "start to ready", "ms", LO, true},
    {"cold_start_ms", "start to first token", "ms", LO, true},
    {"idle_rss_mib", "memory when ready", "MiB", LO, false},
    {"peak_rss_mib", "memory at most", "MiB", LO, true},
    {"output_tps", "tokens of all answers", "tok/s", HI, true},
    {"request_rate", "answers", "req/s", HI, false},
    {"goodput", "answers within the limits", "req/s", HI, true},
    {"error_share", "failed requests", "%", LO, false},
    {"fairness", "fairness", "", HI, false},
    {"ttft_p50_ms", "first token p50", "ms", LO, true},
    {"ttft_p90_ms", "first token p90", "ms", LO, false},
    {"ttft_p99_ms", "first token p99", "ms", LO, true},
    {"tpot_p50_ms", "time per token p50", "ms", LO, true},
    {"tpot_p90_ms", "time per token p90", "ms", LO, false},
    {"tpot_p99_ms", "time per token p99", "ms", LO, false},
    {"itl_p50_ms", "gap between events p50", "ms", LO, false},
    {"itl_p90_ms", "gap between events p90", "ms", LO, false},
    {"itl_p99_ms", "gap between events p99", "ms", LO, true},
    {"e2e_p50_ms", "whole answer p50", "ms", LO, false},
    {"e2e_p90_ms", "whole answer p90", "ms", LO, false},
    {"e2e_p99_ms", "whole answer p99", "ms", LO, false},
    {"cached_share", "prompt tokens from the cache", "%", HI, true},
    {"turn_ttft_ms", "first token of a turn", "ms", LO, true},
    {"turn_prompt_tokens", "prompt of a turn", "tokens", BETTER_NEITHER, false},
    {"turn_recomputed_tokens", "recomputed tokens of a turn", "tokens", LO, true},
    {"turn_rss_mib", "memory after a turn", "MiB", LO, false},
    {"replay_ttft_sum_ms", "all first tokens together", "ms", LO, true},
    {"replay_recomputed_share", "prompt tokens recomputed", "%", LO, true},
    {"replay_peak_rss_mib", "memory at most", "MiB", LO, true},
};
/* clang-format on */

const struct metric *metric_list(size_t *n)
{
    *n = sizeof metrics / sizeof metrics[0];
    return metrics;
}

const struct metric *metric_find(const char *name)
{
    for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++)
        if (strcmp(metrics[i].name, name) == 0)
            return &metrics[i];
    return NULL;
}
