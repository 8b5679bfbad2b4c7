// c = a b, with b in 4 bits and a scale for each group of rows. Plain CUDA C++, small and not fast:
// what is shown is how kernels are named and which of them there are.
#pragma once
#include <cuda_fp16.h>
#include <cuda_bf16.h>

namespace w4a16 {

// Eight weights of a column stand in one word, the first in its lowest bits; 8 stands for 0.
__device__ inline int weight(int word, int at) { return (word >> 4 * at & 15) - 8; }

template <typename T, int kThreads, int kThreadM, int kThreadN, int kThreadK, int kGroup>
__device__ void tile(const T *a, const int *b, const T *scales, T *c, int m, int n, int k,
                     int groups) {
  const int group = kGroup < 0 ? k : kGroup * 16;
  if ((long long)group * groups < k) return;  // fewer scales than the kernel was made for
  for (int i = threadIdx.x; i < kThreadM * kThreadN; i += kThreads) {
    const int row = blockIdx.y * kThreadM + i / kThreadN, column = blockIdx.x * kThreadN + i % kThreadN;
    if (row >= m || column >= n) continue;
    float sum = 0;
    for (int from = 0; from < k; from += kThreadK) {
      const int to = from + kThreadK < k ? from + kThreadK : k;
      for (int at = from; at < to; ++at) {
        const float scale = float(scales[(long long)(at / group) * n + column]);
        const int q = weight(b[(long long)(at / 8) * n + column], at % 8);
        sum += float(a[(long long)row * k + at]) * scale * float(q);
      }
    }
    c[(long long)row * n + column] = T(sum);
  }
}

template <typename T, int kThreads, int kThreadM, int kThreadN, int kThreadK, int kGroup>
__global__ void __launch_bounds__(kThreads)
gemm(const T *a, const int *b, const T *scales, T *c, int m, int n, int k,
                     int groups) {
  tile<T, kThreads, kThreadM, kThreadN, kThreadK, kGroup>(a, b, scales, c, m, n, k, groups);
}

}  // namespace w4a16
