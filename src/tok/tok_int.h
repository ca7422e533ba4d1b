/*
 * tok_int.h - what the tok_*.c files share: the layout of a compiled vocabulary (an "image"), the
 * opened tokenizer, and the stages text goes through:
 *
 *   text -> added tokens (raw) -> normalizers -> added tokens (normalized) -> pre-tokenizers
 *        -> words -> BPE -> ids
 *
 * An image is immutable and may come from a hostile file: tok_image_open checks every bound that
 * the readers rely on, and readers check each id they take from its tables.
 */
#ifndef TOK_TOK_INT_H
#define TOK_TOK_INT_H

#include <stdatomic.h>

#include "base/file.h"
#include "base/json.h"
#include "tok/tok.h"
#include "tok/tok_regex.h"
#include "tok/tok_scan.h"

/* ---- image ---------------------------------------------------------------------------------- */

enum tok_sec {
    SEC_PIECE_OFF, /* u32[n_id + 1]: PIECE bytes of id i = [off[i], off[i+1]) */
    SEC_PIECE,     /* token texts as in the file; added tokens: their content */
    SEC_KEY_OFF,   /* u32[n_id + 1] */
    SEC_KEY,       /* what a word must be to equal the token: raw bytes (byte level) or text */
    SEC_DEC_OFF,   /* u32[n_id + 1] */
    SEC_DEC,       /* the bytes the token stands for in running text */
    SEC_ID_FLAGS,  /* u8[n_id]: enum tok_id_flag */
    SEC_PIECE_MAP, /* u32[2^k]: id + 1 by hash of the piece; 0 = free */
    SEC_KEY_MAP,   /* u32[2^k]: id + 1 by hash of the key, model vocabulary only */
    SEC_MERGES,    /* struct tok_merge[] by hash of (left, right), at most 3/5 full */
    SEC_BYTE_ID,   /* i32[256]: byte level: the id of one byte, -1 = none */
    SEC_FALLBACK,  /* i32[256]: ids of <0x00>..<0xFF>, -1 = none */
    SEC_PAIRS,     /* u64[TOK_PAIR_BITS / 64]: pairs of characters adjacent inside some token;
                      empty unless MODEL_CUTTABLE */
    SEC_ADDED,     /* struct tok_added[] */
    SEC_TRIE_RAW,  /* struct tok_node[]: matched in the raw text; node 0 = root */
    SEC_EDGE_RAW,  /* u32[]: byte << 24 | node, sorted by byte inside a node */
    SEC_TRIE_NORM, /* the same for normalized text */
    SEC_EDGE_NORM,
    SEC_STEPS,  /* JSON: normalizer, pre_tokenizer, decoder, post_processor of tokenizer.json */
    SEC_CONFIG, /* JSON: tokenizer_config.json without added_tokens_decoder; may be empty */
    SEC_N
};

enum tok_id_flag {
    ID_USED = 1,    /* the id exists */
    ID_ADDED = 2,   /* an added token */
    ID_SPECIAL = 4, /* an added token marked special */
    ID_HIDDEN = 8,  /* left out when decoding without special tokens */
    ID_WHOLE = 16,  /* its key as a word encodes to this id alone */
};

enum tok_model_flag {
    MODEL_BYTES = 1, /* words are raw bytes (the last pre-tokenizer is ByteLevel) */
    MODEL_FALLBACK = 2,
    MODEL_FUSE_UNK = 4,
    MODEL_IGNORE_MERGES = 8,
    MODEL_CUTTABLE = 16, /* a long word may be cut where SEC_PAIRS says no token crosses */
};

struct tok_span {
    uint64_t off, n; /* bytes from the image's start; off is a multiple of 16 */
};

#define TOK_IMAGE_MAGIC   "QNTOKV\r\n"
#define TOK_IMAGE_VERSION 4
#define TOK_PAIR_BITS     (1u << 20)
#define TOK_ID_MAX        (1 << 24) /* most ids an image may have */

struct tok_head {
    char magic[8];
    uint32_t version, byte_order; /* 0x01020304 */
    uint64_t total;               /* bytes of the whole image */
    uint64_t key[2];              /* hash of the source files */
    uint32_t flags;               /* enum tok_model_flag */
    int32_t n_id, unk, bos, eos;
    uint32_t reserved;
    struct tok_span sec[SEC_N];
    uint64_t body_sum; /* of everything after the head */
    uint64_t head_sum; /* of everything before this field */
};

struct tok_merge {
    uint32_t left, right, rank, id; /* left = UINT32_MAX: free */
};

enum { ADDED_WORD = 1, ADDED_LSTRIP = 2, ADDED_RSTRIP = 4, ADDED_SPECIAL = 8 };
struct tok_added {
    int32_t id;
    uint32_t flags;
};

struct tok_node {
    uint32_t edge, n_edge; /* its slice of the edge section */
    int32_t added;         /* index in SEC_ADDED of the token that ends here, or -1 */
    uint32_t reserved;
};

/* ---- stages --------------------------------------------------------------------------------- */

enum tok_op_kind {
    OP_NFC, /* normalizers */
    OP_NFD,
    OP_NFKC,
    OP_NFKD,
    OP_LOWER,
    OP_PREPEND,
    OP_REPLACE,
    OP_STRIP,
    OP_BYTES, /* ByteLevel: bytes to their stand-in characters */
    OP_SPLIT, /* pre-tokenizers */
    OP_CLASS, /* split at characters of a class (Digits, Punctuation, WhitespaceSplit) */
    OP_WORDS, /* Whitespace */
    OP_METASPACE,
    OP_BYTE_LEVEL,
};

enum tok_behavior { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS };
enum tok_prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };

struct tok_op {
    enum tok_op_kind kind;
    struct str text;   /* pattern text, prefix or replacement; borrowed from the steps document */
    struct str with;   /* replacement of OP_REPLACE */
    tok_scan_fn scan;  /* known pattern */
    struct tok_re *re; /* other regular expression; NULL: `text` is a plain string */
    unsigned mask;     /* character flags of OP_CLASS */
    uint32_t delim;    /* OP_CLASS with mask 0: this character */
    enum tok_behavior behavior;
    enum tok_prepend prepend;
    bool invert, left, right, prefix_space, split;
};

#define TOK_OPS_MAX 16

struct tok_ops {
    struct tok_op v[TOK_OPS_MAX];
    int n;
};

enum tok_dec_last { DEC_TEXT, DEC_FALLBACK, DEC_BYTES, DEC_JOIN_SPACE };

struct tok_decoder {
    struct tok_ops each; /* Replace, Strip on every token; done when compiling */
    bool metaspace;      /* the first token loses its replacement characters */
    uint32_t meta_char;
    enum tok_dec_last last;
    struct str strip;                 /* on the joined text: this character ... */
    uint32_t strip_left, strip_right; /* ... at most so often */
};

struct tok_steps {
    struct tok_ops norm, pre;
    struct tok_decoder dec;
    int32_t before[8], after[8]; /* post-processor: ids around the text */
    int n_before, n_after;
};

/* Reads the steps document; names in messages are those of tokenizer.json. On failure *s may hold
 * compiled patterns: call tok_steps_free in any case. */
enum qn_status tok_steps_parse(const struct json *doc, struct tok_steps *s, struct qn_err *err);
void tok_steps_free(struct tok_steps *s);

#define TOK_CACHE_SLOTS (1u << 15)
#define TOK_CACHE_KEY   24 /* longest word, bytes */
#define TOK_CACHE_IDS   8  /* most ids */

/* One remembered word. seq is odd while a writer is inside; readers retry nothing: they miss. */
struct tok_slot {
    _Atomic uint32_t seq;
    _Atomic uint32_t lens; /* bytes << 8 | ids; 0 = empty */
    _Atomic uint64_t key[3];
    _Atomic uint64_t ids[4];
};

struct tok {
    const uint8_t *base; /* the image */
    size_t size;
    uint8_t *owned;      /* base when it was compiled in memory, else NULL */
    struct file_map map; /* base when it was mapped */
    const struct tok_head *head;
    const uint32_t *piece_off, *key_off, *dec_off, *piece_map, *key_map;
    const uint8_t *id_flags;
    const struct tok_merge *merges;
    const int32_t *byte_id, *fallback;
    const uint64_t *pairs;
    const struct tok_added *added;
    uint32_t piece_mask, key_mask, n_merge, n_added;
    struct tok_trie {
        const struct tok_node *node;
        const uint32_t *edge;
        uint32_t n_node;
        bool start[256]; /* bytes that some token begins with */
    } raw, norm;
    struct json *steps_doc, *config;
    struct tok_steps steps;
    void *cache_mem;
    struct tok_slot *cache; /* TOK_CACHE_SLOTS; the only mutable part, lock-free */
};

/* Checks the image and points t's fields into it; t->base and t->size are set. */
enum qn_status tok_image_open(struct tok *t, const uint64_t key[2], struct qn_err *err);
/* JSON texts to an image; *image is malloc'd. `map` may be {NULL,0}: special_tokens_map.json. */
struct tok_source {
    struct str tokenizer, config, special_map;
};
enum qn_status tok_compile(const struct tok_source *src, const uint64_t key[2], uint8_t **image,
                           size_t *n, struct qn_err *err);
/* Opens a copy of an image in memory. For tests and fuzzing. */
enum qn_status tok_from_image(struct str image, struct tok **out, struct qn_err *err);
uint64_t tok_image_sum(const void *p, size_t n);

static inline struct str tok_slice(const struct tok *t, enum tok_sec sec, const uint32_t *off,
                                   int32_t id)
{
    return (struct str){(const char *)t->base + t->head->sec[sec].off + off[id],
                        off[id + 1] - off[id]};
}

/* ---- BPE ------------------------------------------------------------------------------------ */

struct tok_work; /* per-call state of the encoder */

static inline uint32_t tok_pair_hash(uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    return (uint32_t)(h * 0xD6E8FEB86659FD93u >> 32);
}

/* First slot of a pair in a table of n. */
static inline uint32_t tok_pair_slot(uint32_t a, uint32_t b, uint32_t n)
{
    return (uint32_t)((uint64_t)tok_pair_hash(a, b) * n >> 32);
}

/* Hash of a short byte string, for the image's tables (its value is part of the format). */
static inline uint64_t tok_hash(const void *p, size_t n)
{
    const uint8_t *s = p;
    uint64_t h = n * 0x9E3779B97F4A7C15u, w;
    while (n >= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
        s += 8;
        n -= 8;
    }
    if (n) {
        w = 0;
        memcpy(&w, s, n);
        h = (h ^ w) * 0xD6E8FEB86659FD93u;
        h ^= h >> 32;
    }
    h *= 0xD6E8FEB86659FD93u;
    return h ^ h >> 29;
}

/* The id whose key is exactly these bytes, in the model's vocabulary; -1 = none. */
int32_t tok_key_find(const struct tok *t, const char *p, size_t n);
/* NULL = the pair does not merge. */
const struct tok_merge *tok_merge_find(const struct tok *t, uint32_t left, uint32_t right);
/* Appends the ids of one word, through the cache. */
enum qn_status tok_word(const struct tok *t, const char *p, size_t n, struct ids *out,
                        struct qn_err *err);
/* The same from the merges alone, without cache and shortcuts. */
enum qn_status tok_word_merge(const struct tok *t, const char *p, size_t n, struct ids *out,
                              struct qn_err *err);
/* The same with windows of that many symbols, from 256; for tests. False: out of memory. */
bool tok_word_merge_by(const struct tok *t, struct str word, size_t window, struct ids *out);
bool ids_reserve(struct ids *a, size_t extra);

/* ---- text stages ---------------------------------------------------------------------------- */

/* Runs the normalizers over text; *out is either text itself or lies in one of the two buffers. */
enum qn_status tok_normalize(const struct tok_ops *ops, struct str text, struct buf tmp[2],
                             struct str *out, struct qn_err *err);
/* Appends s with every match of op (OP_REPLACE) replaced. */
enum qn_status tok_replace(const struct tok_op *op, struct str s, struct buf *out,
                           struct qn_err *err);
/* Splits text into words and appends their ids. at_start: text begins at the input's beginning. */
enum qn_status tok_pre_run(const struct tok *t, struct str text, bool at_start, struct ids *out,
                           struct qn_err *err);

/* The next added token at or after *from: sets [*from, *end) and returns its index, or -1. */
int32_t tok_trie_find(const struct tok_trie *tr, struct str s, size_t *from, size_t *end);

/* Appends what one token stands for: the decoder's per-token steps, then its bytes. first: it opens
 * the text (Metaspace treats it differently). */
enum qn_status tok_token_bytes(const struct tok_decoder *d, struct str token, bool first,
                               struct buf *out, struct qn_err *err);

/* GPT-2's stand-in characters: byte -> code point (33..126, 161..172, 174..255 are themselves). */
uint32_t tok_byte_char(uint8_t b);
/* ... and back: -1 when cp stands for no byte. */
int tok_char_byte(uint32_t cp);

#endif
