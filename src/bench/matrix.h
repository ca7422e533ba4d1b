/*
 * matrix.h - the reference matrix: warm-up, parity probes, decode, first token, long context,
 * restart, several at a time. docs/bench-serve.md defines each figure.
 */
#ifndef BENCH_MATRIX_H
#define BENCH_MATRIX_H

#include "bench/cell.h"

/* An open cell through every phase. QN_OK although phases failed: those are in the record. */
enum qn_status matrix_run(struct cell *c, struct qn_err *err);
/* Tokens that a cell of the matrix reads and writes, for the plan. */
void matrix_tokens(const struct workload_params *w, double *read, double *written);

#define PARITY_PROMPT "The capital of France is"
#define PARITY_CHAT   "Name the capital of France and say one sentence about it."
enum { PARITY_TOKENS = 32 };

#endif
