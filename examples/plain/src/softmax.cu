// Softmax of rows. Not a template: what differs between its kernels are C++ template arguments and
// one macro.
#include "block.cuh"

#ifndef WIDE
#define WIDE 1
#endif

namespace rows {

constexpr int kWide = WIDE;
__device__ constexpr float kScale[2][2] = {{1.0f, 0.5f}, {0.25f, 0.125f}};

template <typename T, int kThreads, bool kHalf>
__global__ void __launch_bounds__(kThreads) softmax(const T *__restrict__ x, T *__restrict__ y, int m, int n) {
  const T *row = x + (long long)blockIdx.x * n;
  T *out = y + (long long)blockIdx.x * n;
  const float scale = kScale[kHalf][0];
  float most = -3.4e38f, sum = 0;
#pragma unroll kWide
  for (int i = threadIdx.x; i < n; i += kThreads) most = fmaxf(most, scale * (float)row[i]);
  most = over_block<kThreads>(most, Most{});
#pragma unroll kWide
  for (int i = threadIdx.x; i < n; i += kThreads) sum += __expf(scale * (float)row[i] - most);
  sum = over_block<kThreads>(sum, Sum{});
#pragma unroll kWide
  for (int i = threadIdx.x; i < n; i += kThreads) out[i] = T(__expf(scale * (float)row[i] - most) / sum);
}

}  // namespace rows
