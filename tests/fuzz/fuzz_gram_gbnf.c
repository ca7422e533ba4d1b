/*
 * fuzz_gram_gbnf.c - any text as a GBNF grammar: compiles or is refused with a message, and a walk
 * through the masks never leaves them.
 */
#include "fuzz_gram.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fuzz_gram(GRAM_GBNF, (struct str){(const char *)p, n});
    return 0;
}
