/*
 * fuzz_gram_regex.c - any text as a regular expression: compiles or is refused with a message, and
 * a walk through the masks never leaves them.
 */
#include "fuzz_gram.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    fuzz_gram(GRAM_REGEX, (struct str){(const char *)p, n});
    return 0;
}
