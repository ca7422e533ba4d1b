/*
 * exec_int.h - what the files of exec/ share. CPU is the only backend so far, so its state lives in
 * struct exec; a second one moves it behind struct exec_ops' self pointer.
 *
 * Everything a pool worker can reach from a job's arguments lives as long as the exec, or is freed
 * behind pool_quiesce (base/pool.h).
 */
#ifndef EXEC_EXEC_INT_H
#define EXEC_EXEC_INT_H

#include "base/pool.h"
#include "exec/exec.h"
#include "exec/kv.h"

struct tensor {
    float *p; /* [cap, cols], 64-byte aligned, row stride = cols */
    int32_t rows, cols;
    int32_t cap; /* rows there is memory for */
};

struct weight {
    struct packed pk;   /* matrices; the first of a stack */
    int32_t n_stack;    /* matrices of a stack; 0 = no stack */
    size_t stack_bytes; /* from one to the next */
    float *vec;         /* vectors; [n] */
    int32_t n;
    size_t bytes;
};

struct rope {
    int32_t dims;
    bool interleaved;
    double mscale;
    double *inv_freq; /* [dims/2] */
    float *cs;        /* [max_rows][dims]: cos then sin of the step's rows */
};

/* ---- KV memory: kv.c, kv_seq.c, kv_prefix.c ---- */

enum { KV_GROUP_MAX = 4 };

/* KV_PAGE tokens of a group's layers. */
struct kv_page {
    uint8_t *data;
    int32_t refs;
    int32_t cached;              /* of these, by prefixes of a cache */
    int32_t claimed;             /* slots that others than the writer rely on */
    const struct kv_seq *writer; /* who may append behind them; NULL = nobody */
};

/* Layers that forget alike. */
struct kv_group {
    int32_t window; /* 0 = nothing is forgotten */
    size_t token_bytes, page_bytes;
    uint8_t *zero_page;
    struct slab *slabs;    /* where pages come from */
    struct kv_page **free; /* stack: pages kept for reuse */
    int32_t n_free, cap_free;
};

/* A sequence's pages of one group: [first, n) are held. */
struct kv_table {
    uint8_t **pages;       /* [n_page_slots]; entries that are not held point at the zero page */
    struct kv_page **held; /* [n_page_max] */
    int32_t first, n;
};

/* A recurrent state of all layers. */
struct kv_state {
    float *data;
    int32_t refs, cached;
};

struct kv_seq {
    struct kv_table tables[KV_GROUP_MAX];
    int32_t len;
    int32_t pending;         /* tokens of the step in flight */
    float *state[2];         /* recurrent state: a step reads [now] and writes the other; or NULL */
    struct kv_state *own[2]; /* where they lie */
    int32_t now;
    /* The last step's span may be cut: it began at token undo_pos with rows [undo_row, + undo_n) of
     * that record; undo_n 0 = it may not. */
    int32_t undo_pos, undo_row, undo_n;
    uint64_t undo_record;
};

/* Pages [first, first + n) of a group, a reference each. */
struct kv_run {
    struct kv_page **pages;
    int32_t first, n;
};

struct kv_prefix {
    int32_t from, end;
    bool cached; /* its references are a cache's */
    struct kv_run runs[KV_GROUP_MAX];
    struct kv_state *state; /* after token end-1; NULL = none, or no layer has one */
    bool has_state;         /* without a state: a hollow one says what it would have */
};

struct kv_store {
    int32_t n_layer, n_group;
    int32_t n_page_max, n_page_slots; /* pages of a full sequence; table entries */
    struct kv_layer *layers;
    size_t *layer_off;   /* [n_layer] byte offset in a page; of a recurrent layer in the state */
    int8_t *layer_group; /* [n_layer] */
    struct kv_group groups[KV_GROUP_MAX];
    size_t token_bytes, state_bytes;
    enum kv_type type;
    struct kv_state *zero_state; /* what an empty sequence has; never written */
    struct kv_state **spare;     /* stack: states kept for reuse */
    int32_t n_spare, cap_spare;
    int64_t budget_bytes;   /* 0 = none */
    int64_t free_max_bytes; /* more than this goes back to the system */
    /* One thread writes, any may read. idle: of pages and states that only a cache holds. */
    _Atomic int64_t used_bytes, free_bytes, idle_bytes;
};

/* Routed experts. A place is a (row, slot) pair in the order of experts. */
struct moe {
    struct moe_shape shape;
    int32_t n_row;
    int32_t *ids, *place; /* [rows, top_k]: chosen experts by rising id, and their places */
    float *weights;       /* [rows, top_k] */
    int32_t *row;         /* [places] */
    int32_t *first;       /* [n_expert + 1]: places of an expert */
    int32_t *next;        /* [n_expert]: sorting */
    uint64_t *pieces;     /* [POOL_CHUNK_MAX]: how a region is cut */
    int64_t n_read;       /* matrices of experts gone through, ever: once for all rows of one */
    struct tensor *x, *gu, *act, *y; /* [places, ..] */
};

/* Sparse attention's choice. */
enum { INDEX_SLOTS = 512, INDEX_SCORE_ROWS = 16, INDEX_TOP_MAX = 1 << 18 };
struct index {
    int32_t top_k;
    int32_t n_slot, row_words; /* tokens there is room for, a multiple of INDEX_SLOTS; / 64 */
    int32_t row_list;          /* entries of a row's list */
    bool all;                  /* the last choice: every row sees everything */
    int32_t *lists;            /* [rows][row_list]: how many were chosen, then which, rising */
    uint64_t *bits;   /* [rows][row_words]: the same as a mask, for memory that is no latent */
    float *scores;    /* [INDEX_SCORE_ROWS][n_slot] */
    struct tensor *q; /* rotated */
};

/* A step's rows, in memory that outlives it. */
struct span {
    struct kv_seq *kv;
    int32_t row0, n, pos;
    int32_t undo; /* its first row in exec.undo; -1 = not recorded */
};
struct attn_rows { /* consecutive rows of one sequence that share a tile */
    const uint8_t *const *pages;
    int32_t row0, n, pos;
};
struct step {
    int32_t n_row, n_span, n_wanted;
    int32_t *ids, *pos, *wanted; /* [max_rows] */
    struct span *spans;          /* [max_rows] */
    /* [max_rows] of each group of KV memory (a late worker pairs one group's offsets with its own
     * pages only), rebuilt when a layer's number of heads asks for another size. */
    struct attn_rows *tiles[KV_GROUP_MAX];
    int32_t tile_rows[KV_GROUP_MAX], n_tile[KV_GROUP_MAX];
    enum attn_sees tile_sees[KV_GROUP_MAX];
};

/* What the recurrent layers took in the rows of a step that may be taken back, so that their states
 * can be made again from those before: undo.c. A layer's record is cap rows each of inputs,
 * mixed and gates. */
struct undo {
    float *p;
    int32_t cap;
    uint64_t number; /* of records so far */
};

enum { QACT_GROUPS = 4 }; /* 16, 32, 64, 128 */

struct exec {
    const struct exec_ops *ops;
    const struct kernels *kern;
    struct pool *pool;
    bool beside; /* the pool is another's */
    bool reference;
    int32_t max_rows, n_ctx;

    uint8_t *region; /* reserved address space for matrices */
    size_t region_bytes, region_used;

    struct tensor **tensors;
    struct weight **weights;
    struct rope **ropes;
    struct moe **moes;
    struct index *index;
    int32_t n_tensor, n_weight, n_rope, n_moe, cap_tensor, cap_weight, cap_rope, cap_moe;
    int32_t k_max; /* widest input of a matrix: sizes the quantized activations */

    struct qact qact[QACT_GROUPS];
    size_t qact_values[QACT_GROUPS]; /* rows times inputs there is room for */
    struct kv_store kv;
    struct step step;
    struct undo undo;
    float *attn_parts; /* cpu_attn.c: what few rows' blocks of tokens gave; NULL = not needed yet */
};
enum { ATTN_PARTS_BYTES = 4 << 20 };

/* Rows of a recurrent layer as they were; out: [n, n_v*dv], what comes of them is not wanted. */
struct delta_rows_of {
    int32_t layer, n, cap;
    const float *u, *mixed, *gates;
    float *out;
};

/* The backend's table; exec.c forwards the op_ functions to it. */
struct exec_ops {
    void (*embed)(struct exec *, struct tensor *, const struct weight *, float);
    void (*rmsnorm)(struct exec *, struct tensor *, const struct tensor *, const struct weight *,
                    float, float);
    void (*add_rmsnorm)(struct exec *, struct tensor *, struct tensor *, const struct tensor *,
                        const struct tensor *, const struct weight *, float, float);
    void (*linear)(struct exec *, const struct linear *, int32_t, const struct tensor *);
    void (*linear_heads)(struct exec *, struct tensor *, const struct weight *,
                         const struct tensor *);
    void (*rope_append)(struct exec *, struct tensor *, const struct tensor *,
                        const struct attn_op *);
    void (*attn)(struct exec *, struct tensor *, const struct tensor *, const struct attn_op *);
    void (*latent_append)(struct exec *, struct tensor *, const struct tensor *,
                          const struct tensor *, const struct tensor *, const struct latent_op *);
    void (*index)(struct exec *, struct index *, const struct index_op *);
    void (*join)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *);
    void (*add)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *);
    void (*glu)(struct exec *, struct tensor *, const struct tensor *, enum glu);
    void (*glu_at)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *,
                   int32_t, enum glu);
    void (*route)(struct exec *, struct moe *, const struct tensor *, enum route_weights);
    void (*route_scaled)(struct exec *, struct moe *, const struct tensor *,
                         const struct route_scales *);
    void (*route_groups)(struct exec *, struct moe *, const struct tensor *,
                         const struct route_groups *);
    void (*experts)(struct exec *, struct tensor *, const struct tensor *, struct moe *,
                    const struct experts *);
    void (*delta_mix)(struct exec *, struct tensor *, struct tensor *, const struct tensor *,
                      const struct tensor *, const struct delta_op *);
    void (*delta)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *,
                  const struct delta_op *);
    void (*delta_again)(struct exec *, const struct delta_rows_of *);
    void (*norm_gated)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *,
                       const struct weight *, float);
    void (*gate)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *,
                 const struct gate_at *);
    void (*add_gated)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *,
                      const struct tensor *);
    void (*add_scale)(struct exec *, struct tensor *, const struct tensor *, const struct tensor *,
                      const struct weight *);
    void (*norm_heads_add)(struct exec *, struct tensor *, const struct tensor *,
                           const struct norm_heads *);
    void (*softcap)(struct exec *, struct tensor *, const struct tensor *, float);
    void (*take)(struct exec *, struct tensor *, const struct tensor *);
    void (*pick)(struct exec *, struct tensor *, const struct tensor *, const int32_t *, int32_t);
    void (*place)(struct exec *, struct tensor *, int32_t, const struct tensor *);
};
extern const struct exec_ops exec_cpu_ops;

/* memory.c: zeroed, page aligned; NULL = out of memory. Freed with mem_free. */
void *mem_alloc(size_t n);
void *mem_alloc_huge(size_t n); /* weights */
void mem_free(void *p, size_t n);

/* slab.c: zeroed blocks, all of the same size in one list; NULL = out of memory. An empty list is
 * NULL, and the list is that again when every block has been given back. */
struct slab;
void *slab_take(struct slab **slabs, size_t bytes);
void slab_give(struct slab **slabs, void *block, size_t bytes);

/* exec.c: a tensor of more rows than a step has. */
enum qn_status tensor_create_rows(struct exec *ex, int32_t rows, int32_t cols, struct tensor **out,
                                  struct qn_err *err);

/* moe.c */
void moe_free(struct moe *m);

/* index.c */
void index_free(struct index *ix);

/* step.c: the step's tiles of at most rows_max rows, with the pages of a layer's group. Where rows
 * see more or less than themselves a tile's pos is the last position that all of them see. */
const struct attn_rows *step_tiles(struct exec *ex, int32_t layer, enum attn_sees sees,
                                   int32_t rows_max, int32_t *n);
void rope_fill(struct exec *ex);

/* kv.c: pages and states */
void kv_store_free(struct exec *ex);
/* NULL = out of memory. The page is zeroed and has one reference. */
struct kv_page *kv_page_take(struct exec *ex, int32_t group);
void kv_page_give(struct exec *ex, int32_t group, struct kv_page *p); /* drops a reference */
struct kv_state *kv_state_take(struct exec *ex); /* NULL = out of memory; zeroed when new */
void kv_state_give(struct exec *ex, struct kv_state *st); /* NULL is fine */
/* The first page that the tokens from n on, and KV_ROLLBACK before them, may see. */
int32_t kv_first_page(const struct kv_group *g, int32_t n);

/* kv_seq.c */
/* Room for n more tokens; on failure nothing has changed. */
enum qn_status kv_seq_grow(struct exec *ex, struct kv_seq *s, int32_t n, struct qn_err *err);
/* The grown tokens count, or do not. */
void kv_seq_commit(struct exec *ex, struct kv_seq *s);
void kv_seq_cancel(struct exec *ex, struct kv_seq *s);
/* What s holds goes back; it is as after creation. Not behind a quiesce of its own. */
void kv_seq_clear(struct exec *ex, struct kv_seq *s);
/* Puts page i of a group into an empty place of the table, taking over a reference. */
void kv_table_put(struct kv_table *t, int32_t i, struct kv_page *p);
/* Others will rely on the page's first `slots` tokens: a reference more. */
void kv_page_share(struct exec *ex, int32_t group, struct kv_page *p, int32_t slots);
/* A reference becomes a cache's, or ends being one. */
void kv_page_cache(struct exec *ex, int32_t group, struct kv_page *p, int32_t by);
void kv_state_cache(struct exec *ex, struct kv_state *st, int32_t by);
void kv_state_share(struct exec *ex, struct kv_state *st); /* a reference more */
void kv_seq_set_state(struct exec *ex, struct kv_seq *s,
                      struct kv_state *st); /* a reference more */

static inline int32_t kv_pages(int32_t n_tok)
{
    return (n_tok + KV_PAGE - 1) / KV_PAGE;
}

/* The page of token pos that a layer is in; where the layer's part of it begins. */
static inline uint8_t *kv_page_of(const struct exec *ex, const struct kv_seq *s, int32_t layer,
                                  int32_t pos)
{
    return s->tables[ex->kv.layer_group[layer]].pages[pos / KV_PAGE];
}
static inline uint8_t *kv_at_token(const struct exec *ex, const struct kv_seq *s, int32_t layer,
                                   int32_t pos)
{
    return kv_page_of(ex, s, layer, pos) + ex->kv.layer_off[layer];
}

/* undo.c */
/* Memory for a record of so many rows, begun. On failure nothing has changed. */
enum qn_status undo_begin(struct exec *ex, int32_t rows, struct qn_err *err);
/* A layer's rows of the step's recorded spans. */
void undo_keep(struct exec *ex, int32_t layer, const struct tensor *u, const struct tensor *mixed,
               const struct tensor *gates);
bool undo_can(const struct exec *ex, const struct kv_seq *s, int32_t n);
/* s's state becomes what it was at n tokens. Behind a quiesce. */
void undo_to(struct exec *ex, struct kv_seq *s, int32_t n);
int64_t undo_bytes(const struct exec *ex);
void undo_free(struct exec *ex);

/* Head `head` of a layer as kernels see it, but for the pages. */
struct kv_head kv_head_of(const struct exec *ex, int32_t layer, int32_t head);
/* Keys and values of a head at token pos of a sequence, in the layer's form; vx may be NULL in a
 * layer of keys only. */
void kv_append(struct exec *ex, const struct kv_seq *s, const struct kv_head *h, int32_t layer,
               int32_t pos, const float *kx, const float *vx);

/* weight.c */
void weight_free(struct weight *w);

/* Pushes onto a grown pointer list; false = out of memory. */
bool list_push(void ***v, int32_t *n, int32_t *cap, void *item);

#endif
