#pragma once
#include <cuda_fp16.h>

namespace rows {

struct Most {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};

template <int kThreads, typename Join>
__device__ float over_block(float value, Join join) {
  __shared__ float kept[32];
  for (int far = 16; far; far /= 2) value = join(value, __shfl_xor_sync(~0u, value, far));
  __syncthreads();
  if (threadIdx.x % 32 == 0) kept[threadIdx.x / 32] = value;
  __syncthreads();
  value = kept[0];
  for (int warp = 1; warp < kThreads / 32; warp++) value = join(value, kept[warp]);
  return value;
}

}  // namespace rows
