/*
 * fuzz_gram_schema.c - any JSON as a schema: compiles or is refused with a message, and a walk
 * through the masks never leaves them.
 */
#include "fuzz_gram.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fuzz_gram(GRAM_JSON_SCHEMA, (struct str){(const char *)p, n});
    return 0;
}
