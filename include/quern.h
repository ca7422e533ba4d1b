/*
 * quern.h - the engine's public face, and the only installed header.
 *
 * How to think about it: an *engine* is a loaded model (immutable weights, tokenizer, template and
 * worker threads). A *sequence* is one timeline of tokens with its key/value memory. A *step* runs
 * the model once over rows of any number of sequences together; the logits of a sequence depend on
 * its own tokens and the model only, bit for bit, whatever else is in the step, however the prompt
 * was cut into steps and however many threads work (docs/numerics.md).
 *
 * Errors are values: every function that can fail for reasons outside the program returns a
 * qn_status and fills the caller's qn_err (may be NULL). Nothing here prints or exits.
 *
 * Threads: one engine may be used from one thread at a time for qn_engine_step and the functions
 * that create, change or free sequences; everything that takes a `const struct qn_engine *`
 * (tokenize, render, info) may be called from any thread at any time.
 */
#ifndef QUERN_H
#define QUERN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QN_API __attribute__((visibility("default")))

/* ---- errors ------------------------------------------------------------------------------- */

enum qn_status {
    QN_OK = 0,
    QN_BAD_INPUT,   /* a file, request or flag is wrong: the message names it, value and limit */
    QN_NOT_FOUND,   /* a named file, model or tensor does not exist */
    QN_UNSUPPORTED, /* well-formed, but this build or machine cannot do it */
    QN_NO_MEMORY,
    QN_IO,        /* the operating system refused: errno's text is in the message */
    QN_CANCELLED, /* the caller's cancel flag was seen */
    QN_BUSY,      /* a bounded queue or resource is full now; trying later can help */
    QN_INTERNAL,  /* a bug in quern */
    QN_LOST,      /* a process that worked on it has died; trying again can help */
};

struct qn_err {
    enum qn_status code;
    const char *where; /* static string: the module that detected it */
    char msg[480];
};

/* ---- engine ------------------------------------------------------------------------------- */

struct qn_engine;
struct qn_seq;

/* How the arithmetic is done; see docs/numerics.md. */
enum qn_arith {
    QN_ARITH_CANONICAL = 0, /* fixed-point activations, exact integer dots, bit-stable (default) */
    QN_ARITH_REFERENCE,     /* float32 activations and KV, double sums, plain C: slow, the truth */
};

/* Whether the model's own draft head is loaded when the folder has one, and what it takes of the
 * model: the state before or behind the final norm is a property of how the head was trained. */
enum qn_mtp_mode {
    QN_MTP_OFF = 0,
    QN_MTP_DEFAULT, /* as is usual in the family: before the norm */
    QN_MTP_BEFORE_NORM,
    QN_MTP_BEHIND_NORM,
};

/* What a draft model in a folder of its own is. */
enum qn_draft_kind {
    QN_DRAFT_NONE = 0,
    QN_DRAFT_DSPARK,    /* a block drafter: docs/speculation.md */
    QN_DRAFT_ASSISTANT, /* Gemma 4's: it reads the model's keys and values */
};

struct qn_engine_params {
    const char *model_dir; /* MLX checkpoint folder */
    int32_t n_thread;      /* 0 = one per available CPU */
    int32_t n_ctx;         /* 0 = the model's own maximum */
    enum qn_arith arith;
    const char *isa;   /* NULL = best; "ref", "avx2", ... caps */
    bool weights_only; /* no tokenizer or template is loaded */
    /* Most bytes that sequences and checkpoints of this engine may hold together; a step that
     * would need more fails and changes nothing. 0 = no limit. */
    int64_t kv_budget_bytes;
    /* How keys and values are kept: "off" (bf16; NULL is the same), "8" or "4" (bits, with a step
     * and a mid for 64 values), "config" (layer by layer as kv_config.json says), "turbo" or
     * "turbo:kKvV" (rotated values; docs/kv-quant.md). */
    const char *kv_quant;
    enum qn_mtp_mode mtp;
    /* A draft model that reads this model's states, in a folder of its own, instead of a head. */
    enum qn_draft_kind draft_kind;
    const char *draft_dir;
    void (*progress)(void *arg, const char *what, double done); /* done in [0,1]; may be NULL */
    void *progress_arg;
};

/* Facts of a loaded model. Strings and arrays live as long as the engine. */
struct qn_model_info {
    const char *family; /* config.json model_type after aliases, e.g. "llama" */
    const char *name;   /* last component of the folder's path */
    const char *isa;    /* kernel set in use, e.g. "avx2" */
    const char *arith;  /* "canonical" or "reference" */
    /* The form of KV memory: "bf16", "f32" (reference arithmetic), "kv8", "kv4", "turbo-k8v4",
     * "config-1a2b3c4d". Memory of two engines of a model is interchangeable when these are equal
     * (and the arithmetic is). */
    const char *kv_format;
    int32_t n_vocab; /* rows of the logits */
    int32_t n_layer, n_embd;
    int32_t n_ctx; /* tokens one sequence can hold */
    int32_t n_thread;
    int64_t n_param;         /* elements of all weights, counted once when tied */
    int64_t weight_bytes;    /* bytes of weights resident in memory */
    int64_t step_bytes;      /* bytes of weights that decoding one token must read */
    int64_t kv_token_bytes;  /* KV bytes per token of context */
    int64_t seq_state_bytes; /* of recurrent state per sequence, whatever its length */
    double bits_per_weight;  /* of the checkpoint's stored tensors, scales and biases included */
    const int32_t *eos_ids;  /* every id that ends an answer */
    int32_t n_eos;
};

QN_API enum qn_status qn_engine_open(const struct qn_engine_params *params, struct qn_engine **out,
                                     struct qn_err *err);
QN_API void qn_engine_free(struct qn_engine *e); /* NULL is fine; free its sequences first */
QN_API const struct qn_model_info *qn_engine_info(const struct qn_engine *e);

/* ---- sequences ---------------------------------------------------------------------------- */

/* A fresh, empty timeline. Memory grows with use up to info.n_ctx tokens. Free with qn_seq_free. */
QN_API enum qn_status qn_seq_create(struct qn_engine *e, struct qn_seq **out, struct qn_err *err);
QN_API void qn_seq_free(struct qn_seq *s);         /* NULL is fine */
QN_API int32_t qn_seq_len(const struct qn_seq *s); /* tokens held */

/* Layers that see a window of W tokens forget what no later token can see, except that the last
 * QN_ROLLBACK tokens can always be taken back. */
enum { QN_ROLLBACK = 16 };
/* Whether a sequence can be cut to, or forked at, its first n tokens: 0 and len always. With
 * windows, only where nothing that token n sees is forgotten, which n >= len - QN_ROLLBACK never
 * is. With a recurrent state it cannot be forked elsewhere, and be cut only into its last step, if
 * that appended 2..QN_ROLLBACK tokens and no later step appended so many to any sequence. */
QN_API bool qn_seq_can_truncate(const struct qn_seq *s, int32_t n);
/* Forgets all but the first n tokens (0 <= n <= len). QN_UNSUPPORTED where it cannot. */
QN_API enum qn_status qn_seq_truncate(struct qn_seq *s, int32_t n, struct qn_err *err);
/* A new sequence that holds the first n tokens of src and shares their memory; both go on
 * independently. QN_UNSUPPORTED where qn_seq_can_truncate says no. Free with qn_seq_free. */
QN_API enum qn_status qn_seq_fork(struct qn_seq *src, int32_t n, struct qn_seq **out,
                                  struct qn_err *err);

/* A sequence's memory at one length, kept without copying anything: pages are shared, and a
 * recurrent state is handed over instead of overwritten. It outlives the sequence. */
struct qn_checkpoint;
QN_API enum qn_status qn_checkpoint_create(struct qn_seq *s, struct qn_checkpoint **out,
                                           struct qn_err *err);
QN_API void qn_checkpoint_free(struct qn_checkpoint *c); /* NULL is fine; before the engine */
QN_API int32_t qn_checkpoint_len(const struct qn_checkpoint *c);
/* A new sequence that goes on from a checkpoint. */
QN_API enum qn_status qn_seq_from(struct qn_checkpoint *c, struct qn_seq **out, struct qn_err *err);
/* s becomes what the checkpoint holds (of the same engine), whatever it held; cannot fail. */
QN_API void qn_seq_rewind(struct qn_seq *s, const struct qn_checkpoint *c);

/* ---- prompt cache --------------------------------------------------------------------------- *
 *
 * Memory of lines of tokens that were computed before, kept by reference and shared by all that
 * begin alike: a sequence can start behind the longest beginning that is there, with the bits that
 * computing it again would give. Whoever computes says what to keep (qn_cache_keep); what sequences
 * hold costs nothing more, what nobody else holds any more is bounded and goes by value: age,
 * bytes, and the tokens it saves. */

struct qn_cache;

struct qn_cache_params {
    int64_t bytes;    /* most that it may hold beside all sequences; 0 = keeps nothing */
    int32_t interval; /* see qn_cache_interval; 0 = chosen by the model's sizes */
};

QN_API enum qn_status qn_cache_create(struct qn_engine *e, const struct qn_cache_params *p,
                                      struct qn_cache **out, struct qn_err *err);
QN_API void qn_cache_free(struct qn_cache *c); /* NULL is fine; before the engine */
QN_API struct qn_engine *qn_cache_engine(const struct qn_cache *c);

/* Tokens, and whose they are: lines of different namespaces (at most 64 bytes; NULL is "") share
 * nothing. */
struct qn_line {
    const char *ns;
    const int32_t *ids;
    int32_t n_ids;
};
/* A sequence of the longest beginning of the line that can be had, at most n_ids - 1 tokens, so
 * that there are logits to ask for: qn_seq_len tells, 0 when there is nothing. *n_match (NULL is
 * fine): how much of the line the cache knows; where that is more, the model cannot go on from
 * there, and a sequence that gets there should be kept there, for the next one. */
QN_API enum qn_status qn_cache_seq(struct qn_cache *c, const struct qn_line *line,
                                   struct qn_seq **out, int32_t *n_match, struct qn_err *err);
/* Keeps what a sequence holds, which is exactly the line. Fails only for want of memory; then it is
 * not kept, and nothing else has changed. */
QN_API enum qn_status qn_cache_keep(struct qn_cache *c, const struct qn_line *line,
                                    struct qn_seq *s, struct qn_err *err);
/* Gives memory back until it holds at most `bytes` beside all sequences. */
QN_API void qn_cache_trim(struct qn_cache *c, int64_t bytes);

/* Every how many tokens of a long line a keep is worth while. */
QN_API int32_t qn_cache_interval(const struct qn_cache *c);
/* A line that was kept at n tokens can be gone on from behind its first n - reach or more:
 * INT32_MAX where nothing is forgotten, QN_ROLLBACK with windows, 0 with a recurrent state. */
QN_API int32_t qn_cache_reach(const struct qn_cache *c);

/* A second tier in a folder, which survives the process: what is kept is written behind, and what
 * memory lacks of a line comes back from there, bit for bit. */
struct qn_disk_params {
    const char *dir; /* made when it is not there; for one process at a time */
    int64_t bytes;   /* most that it may take, of all models together; 0 = no bound */
    int64_t
        idle_ms; /* what is on disk and nobody used for so long leaves memory; 0 = it stays while
                        there is room */
};
#define QN_DISK_IDLE_MS_MAX ((int64_t)1 << 33) /* some hundred days */
/* QN_BUSY: another process has the folder. Reads the model's weights once, to know them again. */
QN_API enum qn_status qn_cache_disk_open(struct qn_cache *c, const struct qn_disk_params *p,
                                         struct qn_err *err);
/* To be called now and then, between steps: what is new goes to the thread that writes; busy: work
 * goes on beside and must not be disturbed. Milliseconds until it wants to be called again, 0 = not
 * before something happens. */
QN_API int32_t qn_cache_tick(struct qn_cache *c, bool busy);
/* Whether a part of the line is being read from the disk: ask again in a moment. Once it is false,
 * qn_cache_seq has all there is. Whoever does not ask waits inside qn_cache_seq. */
QN_API bool qn_cache_loading(struct qn_cache *c, const struct qn_line *line);
struct qn_cache_flush {
    int64_t nodes, tokens;                 /* in memory */
    int64_t durable_nodes, durable_tokens; /* of these, on disk with all that they continue */
    char error[240];                       /* why the rest is not; "" = nothing is known */
};
/* begin: all that memory holds now is to become durable. False: not yet; ask again with begin
 * false, and qn_cache_tick between. True: *out tells how much is. */
QN_API bool qn_cache_flush(struct qn_cache *c, bool begin, struct qn_cache_flush *out);

struct qn_disk_stats {
    bool on;
    int64_t records, bytes, bytes_max; /* in the folder, of all models; 0 = no bound */
    int64_t tokens;                    /* known of this model */
    int64_t queued_bytes;              /* waiting to be written */
    int64_t written, written_bytes;    /* records, since the start; as all below */
    int64_t failed;                    /* writes that came to nothing */
    int64_t damaged, evicted;          /* records that failed a check; that were aged away */
    int64_t restores, restored_tokens, restored_bytes, restore_us;
    int64_t restored_draft_tokens; /* of the draft head's memory */
    int64_t demoted_tokens;        /* that left memory for being idle */
};

struct qn_cache_stats {
    int64_t bytes, bytes_max; /* held beside all sequences, and the bound */
    int64_t nodes, tokens;
    int64_t lookups, hits;               /* a hit has at least one token */
    int64_t asked_tokens, reused_tokens; /* of all lookups */
    int64_t kept_tokens, evicted_tokens; /* put in and dropped so far */
    int64_t thinned;                     /* places to go on from that were dropped alone */
    int64_t failed_keeps;                /* for want of memory */
    struct qn_disk_stats disk;
};
QN_API void qn_cache_stats(const struct qn_cache *c, struct qn_cache_stats *out);

/* ---- memory: what to plan with -------------------------------------------------------------- */

/* The most bytes a sequence of n_tokens can hold at any moment of its life, windows and both copies
 * of a recurrent state counted, nothing shared. Any thread. */
QN_API int64_t qn_seq_bytes(const struct qn_engine *e, int32_t n_tokens);
/* Bytes a sequence holds now; what it shares counts in full. */
QN_API int64_t qn_seq_bytes_held(const struct qn_seq *s);
/* Bytes that all sequences and checkpoints hold now, what is shared counted once. Any thread. */
QN_API int64_t qn_kv_bytes_used(const struct qn_engine *e);
/* Bytes kept for reuse beside those. Any thread. */
QN_API int64_t qn_kv_bytes_free(const struct qn_engine *e);
/* The most bytes of activations and work memory that steps touch which want at most n_logits rows
 * of logits. Any thread. */
QN_API int64_t qn_transient_bytes(const struct qn_engine *e, int32_t n_logits);

/* ---- steps ---------------------------------------------------------------------------------- */

/* One sequence's rows in a step. */
struct qn_step_item {
    struct qn_seq *seq; /* each sequence at most once per step */
    const int32_t *ids; /* [n_ids] tokens to append; every id in [0, n_vocab) */
    int32_t n_ids;      /* >= 1 */
    int32_t n_logits;   /* logits of the last n_logits of these tokens are wanted; 0..n_ids */
    float *logits;      /* [n_logits, n_vocab] float32, caller's memory, written on success */
};

/* Appends every item's tokens to its sequence and computes the wanted logits. On failure no
 * sequence has changed. Long items should be cut by the caller (info: qn_step_max_rows). Beyond the
 * engine's kv_budget_bytes: QN_NO_MEMORY when a sequence is too large for it alone, QN_BUSY when it
 * would fit without the others. */
QN_API enum qn_status qn_engine_step(struct qn_engine *e, struct qn_step_item *items,
                                     int32_t n_items, struct qn_err *err);
/* The most rows (tokens over all items) one step accepts. */
QN_API int32_t qn_step_max_rows(const struct qn_engine *e);

/* ---- the model's own draft head (MTP) ------------------------------------------------------- *
 *
 * A head of one layer that, from the model's state at a token and the token after it, guesses the
 * one after that. A draft context belongs to a sequence: each step of the sequence leaves its
 * states in it, qn_mtp_step takes them together with the tokens that followed, and answers with
 * guesses. What it guesses never changes what the model says; its results too are the same bits
 * however rows are cut into calls and whatever other contexts are in a call.
 *
 * While a sequence has a context its steps cost more: the last layer runs for every row. */

/* A head is loaded (qn_engine_params.mtp), or what takes its place (draft_kind): that has contexts
 * and guesses as a head has, but gives no logits, continues no guesses of an earlier call, and its
 * probabilities are its own word for how sure it is. With QN_DRAFT_ASSISTANT steps cost no more:
 * only rows whose logits were asked for leave a state, few are held, and there are guesses only
 * behind the last token of the sequence (else n_draft becomes 0). */
QN_API bool qn_mtp_available(const struct qn_engine *e);

/* A context for seq, which takes the states of the steps to come. One per sequence; free it before
 * the sequence. QN_UNSUPPORTED without a head. */
struct qn_mtp;
QN_API enum qn_status qn_mtp_create(struct qn_seq *seq, struct qn_mtp **out, struct qn_err *err);
QN_API void qn_mtp_free(struct qn_mtp *m);                  /* NULL is fine */
QN_API struct qn_mtp *qn_seq_mtp(const struct qn_seq *seq); /* its context; NULL = none */
/* The position, in the sequence's timeline, of the token that the next row takes; and how many rows
 * wait for theirs: states of up to 2 qn_step_max_rows() tokens are held, older ones are forgotten
 * and their rows left out. */
QN_API int32_t qn_mtp_next(const struct qn_mtp *m);
QN_API int32_t qn_mtp_waiting(const struct qn_mtp *m);
/* Bytes that a context of n_tokens holds beside its sequence. Any thread. */
QN_API int64_t qn_mtp_bytes(const struct qn_engine *e, int32_t n_tokens);

enum { QN_MTP_DRAFT_MAX = 16, QN_MTP_LEVELS = 8 };

struct qn_mtp_item {
    struct qn_mtp *mtp; /* each context at most once per call */
    /* Tokens at positions qn_mtp_next()..., the last of which the model need not have seen yet; at
     * most qn_mtp_waiting(). With `own`, one token that follows this context's last guess: its
     * state is the head's own. Rows with own states are forgotten when others come. */
    const int32_t *ids;
    int32_t n_ids; /* >= 1 */
    bool own;
    int32_t n_logits; /* logits of the last n_logits rows; 0..n_ids */
    float *logits;    /* [n_logits, n_vocab]: each row's, of the token after its own */
    int32_t n_draft;  /* 0..QN_MTP_DRAFT_MAX: guesses after the last row, each fed to the next */
    int32_t *drafts;  /* [n_draft]: the likeliest; among equals the lowest id */
    float *probs;     /* [n_draft]: their probabilities; or NULL */
    /* NULL, or how often guesses hold whose probabilities lie in each of QN_MTP_LEVELS levels, that
     * begin at 0, .2, .4, .6, .75, .85, .93 and .98: guesses end, n_draft becomes less, behind one
     * with which they hold together less often than `least`. Needs probs. A block drafter, whose
     * guesses come at once, makes all. */
    const float *odds;
    float least;
};

/* Runs the head over every item's rows together, then over the guesses of those that want more. On
 * failure (memory) rows with own states may be forgotten, and where guesses are missing the rows of
 * the call may be in: qn_mtp_next tells. */
QN_API enum qn_status qn_mtp_step(struct qn_engine *e, struct qn_mtp_item *items, int32_t n_items,
                                  struct qn_err *err);

/* ---- text --------------------------------------------------------------------------------- */

enum qn_tok_flags {
    QN_TOK_ADD_SPECIAL = 1,   /* add BOS/EOS as the tokenizer's post-processor says */
    QN_TOK_PARSE_SPECIAL = 2, /* special tokens written in the text become their ids */
};

/* Text (any bytes; invalid UTF-8 is read as U+FFFD) to ids. *ids is malloc'd; the caller frees it
 * with qn_free. */
QN_API enum qn_status qn_tokenize(const struct qn_engine *e, const char *text, size_t len,
                                  unsigned flags, int32_t **ids, int32_t *n_ids,
                                  struct qn_err *err);
/* Ids to text, special tokens skipped unless keep_special. *text is malloc'd, NUL-terminated. */
QN_API enum qn_status qn_detokenize(const struct qn_engine *e, const int32_t *ids, int32_t n_ids,
                                    bool keep_special, char **text, size_t *len,
                                    struct qn_err *err);
/* Renders the chat template. `request_json` is an object with "messages" and optionally "tools",
 * "add_generation_prompt", "chat_template_kwargs"... as the OpenAI API names them. *text is
 * malloc'd. A template's raise_exception comes back as QN_BAD_INPUT with its message. */
QN_API enum qn_status qn_chat_render(const struct qn_engine *e, const char *request_json,
                                     size_t len, char **text, size_t *text_len, struct qn_err *err);
QN_API void qn_free(void *p);

QN_API const char *qn_version(void);

#ifdef __cplusplus
}
#endif
#endif
