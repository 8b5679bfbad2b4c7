"""A kernel of Hopper's: tiles come and go by tensor maps, in clusters, after a dependent launch."""

from support.project import head

MANIFEST = (
    head("gpu", "sm_90a")
    + """\
[script.scale]
template = "scale.cu.j2"
kernel = "scale"
[script.scale.args]
x = { type = "bf16*[m, n]", parameter = false }
y = { type = "bf16*[m, n]", out = true, parameter = false }
x_map = { tensor-map = "x", box = ["block_m", "block_n"], swizzle = "row", l2-promotion = 128 }
y_map = { tensor-map = "y", box = ["block_m", "block_n"], swizzle = "row" }
m = "i32"
n = { type = "i32", parameter = false }
by = "f32"
[script.scale.space]
block_m = [32, 64]
block_n = [32, 64]
[script.scale.derived]
row = "block_n * 2"
[script.scale.launch]
grid = ["cdiv(n, block_n)", "align(cdiv(m, block_m), 2)"]
block = [128]
cluster = [1, 2]
pdl = true
[script.scale.prune]
max-spill-bytes = 0
"""
)

TEMPLATE = """\
{% import "tilusbuild/async.cuh.j2" as async %}
#include <cuda.h>
#include <cuda_bf16.h>
#include <cooperative_groups.h>
{{ async.tensor([2]) }}
extern "C" __global__ void __cluster_dims__(1, 2, 1)
scale(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap y, int m,
      float by) {
  __shared__ __align__(1024) __nv_bfloat16 tile[{{ block_m * block_n }}];
  __shared__ unsigned long long bar;
  const unsigned barrier = tb::smem_address(&bar), at = tb::smem_address(tile);
  const int column = blockIdx.x * {{ block_n }}, row = blockIdx.y * {{ block_m }};
  if (threadIdx.x == 0) {
    tb::mbarrier_init(barrier, 1);
    tb::mbarrier_fence_init();
  }
  cooperative_groups::this_cluster().sync();
  cudaGridDependencySynchronize();
  if (row >= m) return;
  if (threadIdx.x == 0) {
    tb::mbarrier_expect(barrier, sizeof tile);
    tb::tensor_load_2d(at, &x, barrier, column, row);
  }
  tb::mbarrier_wait(barrier, 0);
  // One factor for all, so that where the swizzle puts an element does not matter.
  for (int i = threadIdx.x; i < {{ block_m * block_n }}; i += 128)
    tile[i] = __float2bfloat16(__bfloat162float(tile[i]) * by);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    tb::tensor_store_2d(&y, at, column, row);
    tb::bulk_commit();
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
"""

FILES = {"scale.cu.j2": TEMPLATE}
