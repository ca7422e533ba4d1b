/*
 * test_record.c - a record's header: what is written is read back, every byte of it counts, and
 * lengths that lie are refused before they are used.
 */
#include "../check.h"

#include "store/record.h"

#define N(a) (sizeof(a) / sizeof *(a))

struct sample {
    int32_t from, n_token;
    const char *note;
    uint32_t n_part;
};
static const struct sample samples[] = {
    {0, 1, "", 0}, {0, 64, "a note", 3}, {1, 1000, "", 1}, {123456, 0, "x", 500}, {64, 5, "", 2},
};

static void make(const struct sample *s, struct buf *out, struct record_id *id,
                 struct record_name *name)
{
    static int32_t tokens[1000];
    struct record_sum parts[500];
    struct qn_err err = {0};
    for (int32_t i = 0; i < 1000; i++)
        tokens[i] = i * 7919 % 50000;
    *id = (struct record_id){
        .from = s->from, .n_token = s->n_token, .tokens = tokens, .note = str_of(s->note)};
    memset(id->model.b, 0x5a, sizeof id->model.b);
    memset(id->parent.b, s->from ? 0x77 : 0, sizeof id->parent.b);
    for (uint32_t i = 0; i < s->n_part; i++)
        parts[i] = (struct record_sum){1000 + i, {i, ~(uint64_t)i}};
    assert_true(record_name_of(id, name));
    CHECK_OK(record_write(id, name, parts, s->n_part, out, &err), err);
}

static uint64_t file_bytes(const struct sample *s, const struct buf *b)
{
    uint64_t n = b->n;
    for (uint32_t i = 0; i < s->n_part; i++)
        n += 1000 + i;
    return n;
}

static void read_back(void **state)
{
    for (size_t k = 0; k < N(samples); k++) {
        const struct sample *s = &samples[k];
        struct buf b = BUF_INIT;
        struct record_id id;
        struct record_name name;
        struct record r;
        struct qn_err err = {0};
        uint64_t header;
        int32_t tokens[1000];
        make(s, &b, &id, &name);
        assert_int_equal(b.n % RECORD_ALIGN, 0);
        assert_int_equal(b.n, record_payload_off(&id, s->n_part));
        CHECK_OK(record_measure((uint8_t *)b.p, RECORD_HEAD, &header, &err), err);
        CHECK_OK(record_read((uint8_t *)b.p, b.n, file_bytes(s, &b), &r, &err), err);
        assert_int_equal(r.id.from, s->from);
        assert_int_equal(r.id.n_token, s->n_token);
        assert_true(record_name_eq(&r.name, &name) && record_name_eq(&r.id.model, &id.model) &&
                    record_name_eq(&r.id.parent, &id.parent) && str_eqz(r.id.note, s->note));
        record_tokens(&r, tokens);
        assert_memory_equal(tokens, id.tokens, (size_t)s->n_token * 4);
        assert_int_equal(r.n_part, s->n_part);
        for (uint32_t i = 0; i < s->n_part; i++) {
            struct record_sum p = record_part(&r, i);
            assert_true(p.bytes == 1000 + i && p.sum.lo == i && p.sum.hi == ~(uint64_t)i);
        }
        buf_free(&b);
    }
}

/* The name tells apart everything that says what the payload is. */
static void names_differ(void **state)
{
    int32_t t1[] = {1, 2, 3}, t2[] = {1, 2, 4};
    struct record_name m = {{1}}, p = {{2}};
    struct record_id ids[] = {
        {.n_token = 3, .tokens = t1},
        {.n_token = 2, .tokens = t1},
        {.n_token = 3, .tokens = t2},
        {.n_token = 3, .tokens = t1, .model = m},
        {.n_token = 3, .tokens = t1, .parent = p},
        {.n_token = 3, .tokens = t1, .from = 1},
        {.n_token = 3, .tokens = t1, .note = STR_LIT("n")},
        {.n_token = 2, .tokens = t1, .note = STR_LIT("\3\0\0\0")},
    };
    struct record_name names[N(ids)];
    for (size_t i = 0; i < N(ids); i++) {
        assert_true(record_name_of(&ids[i], &names[i]));
        assert_false(record_name_none(&names[i]));
        for (size_t j = 0; j < i; j++)
            assert_false(record_name_eq(&names[i], &names[j]));
    }
}

static void hex_both_ways(void **state)
{
    struct record_name a, b;
    char hex[65];
    for (size_t i = 0; i < sizeof a.b; i++)
        a.b[i] = (uint8_t)(i * 37 + 200);
    record_name_hex(&a, hex);
    assert_true(record_name_parse(str_of(hex), &b) && record_name_eq(&a, &b));
    hex[63] = 'G';
    assert_false(record_name_parse(str_of(hex), &b));
    assert_false(record_name_parse(STR_LIT("00"), &b));
}

/* A flip of any bit, and any shorter or longer file, is refused. */
static void damage_is_seen(void **state)
{
    struct buf b = BUF_INIT;
    struct record_id id;
    struct record_name name;
    struct record r;
    struct qn_err err = {0};
    uint64_t header;
    make(&samples[1], &b, &id, &name);
    uint64_t whole = file_bytes(&samples[1], &b);
    uint8_t *p = (uint8_t *)b.p;
    CHECK_OK(record_measure(p, b.n, &header, &err), err);
    for (size_t i = 0; i < header * 8; i++) {
        p[i / 8] ^= (uint8_t)(1 << i % 8);
        err = (struct qn_err){0};
        assert_int_not_equal(record_read(p, b.n, whole, &r, &err), QN_OK);
        assert_true(err.msg[0]);
        p[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    for (size_t n = 0; n < header; n++)
        assert_int_not_equal(record_read(p, n, whole, &r, &err), QN_OK);
    CHECK_FAILS(record_read(p, b.n, whole - 1, &r, &err), QN_BAD_INPUT, err, "its header says");
    CHECK_FAILS(record_read(p, b.n, whole + 1, &r, &err), QN_BAD_INPUT, err, "its header says");
    CHECK_OK(record_read(p, b.n, whole, &r, &err), err);
    buf_free(&b);
}

/* With a checksum that is right: only the checks of meaning stand in the way. */
static void lies_are_refused(void **state)
{
    static const struct {
        size_t at;
        uint8_t v;
        enum qn_status status;
        const char *part;
    } lies[] = {
        {0, 'X', QN_BAD_INPUT, "no record"},       {8, 9, QN_UNSUPPORTED, "format 9"},
        {12, 0xff, QN_BAD_INPUT, "lengths"},       {115, 0x80, QN_BAD_INPUT, "begins at"},
        {119, 0x7f, QN_BAD_INPUT, "lengths"},      {123, 0x7f, QN_BAD_INPUT, "lengths"},
        {127, 0x7f, QN_BAD_INPUT, "lengths"},      {128, 1, QN_BAD_INPUT, "payload's place"},
        {136, 1, QN_BAD_INPUT, "payload's place"}, {144, 0xaa, QN_BAD_INPUT, "not that of the"},
        {16, 0xaa, QN_BAD_INPUT, "not that of"},   {112, 1, QN_BAD_INPUT, "continues nothing"},
    };
    for (size_t k = 0; k < N(lies); k++) {
        struct buf b = BUF_INIT;
        struct record_id id;
        struct record_name name;
        struct record r;
        struct qn_err err = {0};
        uint64_t header;
        make(&samples[1], &b, &id, &name);
        uint8_t *p = (uint8_t *)b.p;
        CHECK_OK(record_measure(p, b.n, &header, &err), err);
        p[lies[k].at] = lies[k].v;
        struct hash128 sum = hash128(p, header - 16);
        memcpy(p + header - 16, &sum.lo, 8);
        memcpy(p + header - 8, &sum.hi, 8);
        CHECK_FAILS(record_read(p, b.n, file_bytes(&samples[1], &b), &r, &err), lies[k].status, err,
                    lies[k].part);
        buf_free(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(read_back),        cmocka_unit_test(names_differ),
        cmocka_unit_test(hex_both_ways),    cmocka_unit_test(damage_is_seen),
        cmocka_unit_test(lies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
