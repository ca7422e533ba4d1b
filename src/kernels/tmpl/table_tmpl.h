/*
 * table_tmpl.h - the slots that the templates fill, the same for every vector instruction set.
 * Included after the other *_tmpl.h files.
 */

static void tmpl_fill(struct kernels *t)
{
    t->quantize = tmpl_quantize;
    t->rmsnorm = tmpl_rmsnorm;
    t->swiglu = tmpl_swiglu;
    t->geglu = tmpl_geglu;
    t->swiglu_clamped = tmpl_swiglu_clamped;
    t->add = tmpl_add;
    t->scale = tmpl_scale;
    t->softcap = tmpl_softcap;
    t->rope = tmpl_rope;
    t->kv_put = tmpl_kv_put;
    t->kv_code = tmpl_kv_code;
    t->attn = tmpl_attn;
    t->attn_part = tmpl_attn_part;
    t->attn_merge = tmpl_attn_merge;
    t->latent_put = tmpl_latent_put;
    t->latent_attn = tmpl_latent_attn;
    t->index_score = tmpl_index_score;
    t->sigmul = tmpl_sigmul;
    t->l2norm = tmpl_l2norm;
    t->conv_silu = tmpl_conv_silu;
    t->delta_gates = tmpl_delta_gates;
    t->delta = tmpl_delta;
}
