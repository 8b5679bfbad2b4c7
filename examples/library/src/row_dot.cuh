#pragma once

#include "rowdot.h"

#ifdef __CUDACC__
#define ROWDOT __host__ __device__ inline
#else
#define ROWDOT inline
#endif

// A format is a block of 32 values and how one of them is read.
struct row_f32 {
  float v[32];
  ROWDOT float at(int i) const { return v[i]; }
};

struct row_i8 {
  signed char v[32];
  ROWDOT float at(int i) const { return v[i]; }
};

struct row_q8 {
  float scale;
  signed char v[32];
  ROWDOT float at(int i) const { return scale * v[i]; }
};

struct row_q4 {
  float scale;
  unsigned char v[16];
  ROWDOT float at(int i) const {
    const int pair = v[i % 16];
    return scale * ((i < 16 ? pair & 15 : pair >> 4) - 8);
  }
};

struct vec_f32 : row_f32 {};
struct vec_i8 : row_i8 {};

template <class Row, class Vec>
ROWDOT float block_dot(const Row &row, const Vec &vec) {
  float sum = 0;
  for (int i = 0; i < 32; ++i) sum += row.at(i) * vec.at(i);
  return sum;
}

#ifdef __CUDACC__

// A warp a row: each thread takes every 32nd block.
template <class Row, class Vec>
__global__ void row_dot_kernel(const Row *rows, const Vec *vec, float *out, int blocks) {
  float sum = 0;
  for (int b = threadIdx.x; b < blocks; b += 32)
    sum += block_dot(rows[(long long)blockIdx.x * blocks + b], vec[b]);
  for (int away = 16; away; away /= 2) sum += __shfl_xor_sync(0xffffffff, sum, away);
  if (threadIdx.x == 0) out[blockIdx.x] = sum;
}

template <class Row, class Vec>
int row_dot(const void *rows, const void *vec, float *out, int count, int blocks, void *stream) {
  row_dot_kernel<<<count, 32, 0, (cudaStream_t)stream>>>((const Row *)rows, (const Vec *)vec, out,
                                                         blocks);
  return cudaGetLastError();
}

#else

template <class Row, class Vec>
int row_dot(const void *rows, const void *vec, float *out, int count, int blocks, void *) {
  for (int r = 0; r < count; ++r) {
    out[r] = 0;
    for (int b = 0; b < blocks; ++b)
      out[r] += block_dot(((const Row *)rows)[(long long)r * blocks + b], ((const Vec *)vec)[b]);
  }
  return 0;
}

#endif
