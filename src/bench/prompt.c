/* prompt.c - see prompt.h. */
#include "bench/prompt.h"

#include <stdio.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/rng.h"

struct nonce nonce_make(const char *seed, const char *phase, int attempt, int index)
{
    struct buf b = BUF_INIT;
    struct nonce n;
    char digest[65];
    buf_addc(&b, '[');
    json_w_strz(&b, seed);
    buf_addc(&b, ',');
    json_w_strz(&b, phase);
    buf_addf(&b, ",%d,%d]", attempt, index);
    sha256(buf_z(&b), b.n, digest);
    snprintf(n.z, sizeof n.z, "%.12s", digest);
    buf_free(&b);
    return n;
}

static const char *const words[] = {
    "river",   "stone",    "before",   "market",   "engine",   "paper",    "garden",   "window",
    "simple",  "winter",   "thread",   "copper",   "letter",   "signal",   "bridge",   "farmer",
    "silver",  "number",   "morning",  "travel",   "careful",  "history",  "machine",  "between",
    "village", "teacher",  "science",  "program",  "weather",  "kitchen",  "general",  "picture",
    "the",     "of",       "and",      "in",       "with",     "under",    "over",     "through",
    "measure", "question", "mountain", "language", "computer", "building", "together", "remember",
    "carry",   "build",    "write",    "find",     "open",     "turn",     "keep",     "small",
    "early",   "quiet",    "broad",    "green",    "north",    "seven",    "first",    "other"};

void prompt_filler(struct buf *out, const char *salt, int n_token)
{
    const uint64_t n_word = sizeof words / sizeof words[0];
    uint64_t seed = hash64(salt, strlen(salt), 0x71);
    size_t from = out->n, want = (size_t)((double)n_token * CHARS_PER_TOKEN);
    bool begin = true;
    buf_addf(out, "%s:", salt);
    for (uint64_t i = 0; out->n - from < want && !out->failed; i++) {
        const char *w = words[rng_u64(seed, 0, i) % n_word];
        buf_addf(out, " %c%s", begin ? w[0] - 32 : w[0], w + 1);
        begin = rng_u64(seed, 1, i) % 12 == 0;
        if (begin)
            buf_addc(out, '.');
    }
    buf_addc(out, '.');
}

static void message(struct jw *w, const char *role, struct str content)
{
    jw_obj(w);
    jw_kstrz(w, "role", role);
    jw_kstr(w, "content", content);
    jw_obj_end(w);
}

static void write_messages(struct jw *w, const struct body_params *p)
{
    jw_key(w, "messages");
    if (p->messages.n) {
        jw_raw(w, p->messages);
        return;
    }
    jw_arr(w);
    if (p->system.n)
        message(w, "system", p->system);
    message(w, "user", p->content);
    jw_arr_end(w);
}

void prompt_body(struct buf *out, const struct body_params *p)
{
    struct jw w;
    jw_init(&w, out);
    jw_obj(&w);
    if (p->model && *p->model)
        jw_kstrz(&w, "model", p->model);
    if (p->chat)
        write_messages(&w, p);
    else
        jw_kstr(&w, "prompt", p->content);
    if (p->tools.n) {
        jw_key(&w, "tools");
        jw_raw(&w, p->tools);
    }
    jw_ki64(&w, "max_tokens", p->max_tokens);
    jw_ki64(&w, "temperature", 0);
    jw_kbool(&w, "stream", true);
    jw_key(&w, "stream_options");
    jw_obj(&w);
    jw_kbool(&w, "include_usage", true);
    jw_obj_end(&w);
    if (p->thinking) {
        jw_key(&w, "chat_template_kwargs");
        jw_obj(&w);
        jw_kbool(&w, "enable_thinking", true);
        jw_obj_end(&w);
    }
    if (p->ignore_eos)
        jw_kbool(&w, "ignore_eos", true);
    jw_obj_end(&w);
}
