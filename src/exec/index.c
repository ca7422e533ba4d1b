/*
 * index.c - the memory of a sparse attention's index: lists of the tokens that a step's rows chose,
 * and scores of a few rows. One serves all layers of a model.
 */
#include <stdlib.h>

#include "exec/exec_int.h"

void index_free(struct index *ix)
{
    if (!ix)
        return;
    free(ix->lists);
    free(ix->bits);
    free(ix->scores);
    free(ix);
}

/* A late worker may pair an old position with a new row: rows and tokens have room for both. */
enum qn_status index_create(struct exec *ex, int32_t top_k, int32_t q_cols, struct index **out,
                            struct qn_err *err)
{
    QN_ASSERT(!ex->index && top_k >= 1);
    struct index *ix = calloc(1, sizeof *ix);
    if (!ix)
        QN_FAIL(err, QN_NO_MEMORY, "index", "out of memory");
    ex->index = ix;
    ix->top_k = top_k;
    ix->n_slot = (ex->n_ctx + ex->max_rows + 2 * INDEX_SLOTS - 1) / INDEX_SLOTS * INDEX_SLOTS;
    ix->row_words = ix->n_slot / 64;
    ix->row_list = 1 + (top_k < ix->n_slot ? top_k : 0); /* more than fit: all are seen */
    if (ix->row_list > INDEX_TOP_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, "index", "%d tokens chosen of each context; at most %d", top_k,
                INDEX_TOP_MAX - 1);
    if (ix->n_slot / INDEX_SLOTS > POOL_CHUNK_MAX)
        QN_FAIL(err, QN_UNSUPPORTED, "index", "%d tokens of context; at most %d with an index",
                ex->n_ctx, POOL_CHUNK_MAX * INDEX_SLOTS - ex->max_rows - INDEX_SLOTS);
    size_t rows = (size_t)ex->max_rows + ATTN_Q_MAX;
    ix->lists = calloc(rows * (size_t)ix->row_list, sizeof *ix->lists);
    ix->scores = calloc((size_t)INDEX_SCORE_ROWS * (size_t)ix->n_slot, sizeof *ix->scores);
    ix->bits = calloc(rows * (size_t)ix->row_words, sizeof *ix->bits);
    if (!ix->lists || !ix->bits || !ix->scores)
        QN_FAIL(err, QN_NO_MEMORY, "index", "out of memory for lists of %zu rows by %d tokens",
                rows, ix->row_list);
    *out = ix;
    return tensor_create(ex, q_cols, &ix->q, err);
}
