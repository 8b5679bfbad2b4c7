#pragma once

// out[r] = rows[r] · vec for `count` rows of `blocks` blocks of 32 values. The formats are
// "f32", "i8", "q8" and "q4" of rows, "f32" and "i8" of the vector. Returns 0, an error of the
// CUDA runtime, or -1 for a pair that there is no instance of.
extern "C" int rowdot_run(const char *row, const char *vec, const void *rows, const void *values,
                          float *out, int count, int blocks, void *stream);

template <class Row, class Vec>
int row_dot(const void *rows, const void *vec, float *out, int count, int blocks, void *stream);

struct row_f32;
struct row_i8;
struct row_q8;
struct row_q4;
struct vec_f32;
struct vec_i8;
