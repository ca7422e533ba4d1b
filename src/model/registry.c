/*
 * registry.c - the families quern knows. Adding one: its file in this folder and a row here.
 */
#include "model/model.h"

extern const struct family family_deepseek_v3, family_deepseek_v32, family_gemma3, family_gemma4,
    family_glm_moe_dsa, family_gpt_oss, family_llama, family_phi3, family_qwen2, family_qwen3,
    family_qwen3_moe, family_qwen3_5, family_qwen3_5_moe, family_qwen3_next;

static const struct family *const families[] = {
    &family_deepseek_v3, &family_deepseek_v32, &family_gemma3,    &family_gemma4,
    &family_glm_moe_dsa, &family_gpt_oss,      &family_llama,     &family_phi3,
    &family_qwen2,       &family_qwen3,        &family_qwen3_moe, &family_qwen3_5,
    &family_qwen3_5_moe, &family_qwen3_next,
};

const struct family *family_find(struct str model_type)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        for (const char *const *t = families[i]->model_types; *t; t++)
            if (str_eqz(model_type, *t))
                return families[i];
    return NULL;
}

void family_list(struct buf *out)
{
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++)
        for (const char *const *t = families[i]->model_types; *t; t++)
            buf_addf(out, "%s%s", out->n ? ", " : "", *t);
}
