/*
 * fake_model.h - a tiny llama checkpoint made up in memory: tests change its config and tensors,
 * write it into a folder and open it. One layer, hidden size 64, 128 ids, 4-bit weights, random
 * but reproducible.
 */
#ifndef TESTS_FAKE_MODEL_H
#define TESTS_FAKE_MODEL_H

#include <stddef.h>
#include <stdint.h>

enum { FAKE_TENSORS = 64, FAKE_KEYS = 48, FAKE_VOCAB = 128, FAKE_HIDDEN = 64 };

struct fake_tensor {
    char name[96], dtype[16];
    int64_t shape[3];
    int n_dim;
    uint8_t *data;
    size_t bytes;
    char entry[256]; /* not empty: written as the header's entry instead of the true one */
};
struct fake {
    struct fake_tensor t[FAKE_TENSORS];
    int n;
    struct {
        char key[48], val[1024];
    } cfg[FAKE_KEYS];
    int n_cfg;
};

void fake_init(struct fake *f); /* valid: embeddings tied, 4 bits in groups of 32 */
void fake_free(struct fake *f);
/* config.json's key to this JSON text; NULL removes it. */
void fake_set(struct fake *f, const char *key, const char *json);
struct fake_tensor *fake_find(struct fake *f, const char *name); /* aborts when absent */
void fake_drop(struct fake *f, const char *name);
/* Adds or replaces; dims end with 0. Filled with random values that suit the dtype. */
void fake_put(struct fake *f, const char *name, const char *dtype, const int64_t *dims);
/* MODULE.weight, .scales and .biases of n outputs, k inputs. */
void fake_put_affine(struct fake *f, const char *module, int64_t n, int64_t k, int bits, int group);
void fake_write_config(const struct fake *f, const char *dir);
/* Tensors [begin, end) into dir/file. */
void fake_write_tensors(const struct fake *f, const char *dir, const char *file, int begin,
                        int end);
void fake_write(const struct fake *f, const char *dir); /* config.json and model.safetensors */
void fake_write_text(const char *dir, const char *file, const char *text);

#endif
