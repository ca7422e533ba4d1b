/* kv_parts.c - see kv_parts.h. */
#include "cache/kv_parts.h"

static enum qn_status part_make(void *self, void *src, int32_t from, int32_t n, void **out,
                                struct qn_err *err)
{
    struct kv_prefix *p;
    QN_TRY(kv_prefix_create(self, src, from, n, &p, err));
    kv_prefix_cached(self, p);
    *out = p;
    return QN_OK;
}

static enum qn_status part_cut(void *self, const void *of, int32_t from, int32_t n, void **out,
                               struct qn_err *err)
{
    struct kv_prefix *p;
    QN_TRY(kv_prefix_part(self, of, from, n, &p, err));
    kv_prefix_cached(self, p);
    *out = p;
    return QN_OK;
}

static void part_free(void *self, void *p)
{
    kv_prefix_free(self, p);
}

static bool anywhere(void *self)
{
    return kv_end_bytes(self) == 0;
}

static bool part_complete(void *self, const void *p)
{
    return kv_prefix_complete(self, p);
}

static void part_thin(void *self, void *p)
{
    kv_prefix_thin(self, p);
}

static int32_t parts_usable(void *self, const void *const *parts, int32_t n_part, int32_t n)
{
    struct kv_chain c = kv_parts_chain(parts, n_part);
    return kv_chain_usable(self, &c, n);
}

static int64_t idle_all(void *self)
{
    return kv_bytes_idle(self);
}

static int64_t part_idle(void *self, const void *p)
{
    return kv_prefix_idle(self, p);
}

static int64_t part_idle_end(void *self, const void *p)
{
    return kv_prefix_idle_end(self, p);
}

static bool part_in_use(void *self, const void *p)
{
    return kv_prefix_in_use(self, p);
}

enum qn_status kv_parts_import(struct exec *ex, struct ptree *tree, const struct kv_shape *s,
                               struct kv_prefix **out, struct qn_err *err)
{
    int64_t need = kv_shape_bytes(ex, s), idle = kv_bytes_idle(ex);
    if (kv_import_create(ex, s, out, err) == QN_OK)
        return QN_OK;
    ptree_trim(tree, idle > need ? idle - need : 0);
    return kv_import_create(ex, s, out, err);
}

const struct ptree_ops kv_parts_ops = {
    .make = part_make,
    .part = part_cut,
    .free = part_free,
    .anywhere = anywhere,
    .complete = part_complete,
    .thin = part_thin,
    .usable = parts_usable,
    .idle_all = idle_all,
    .idle = part_idle,
    .idle_end = part_idle_end,
    .in_use = part_in_use,
};
