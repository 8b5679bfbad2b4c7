// A CUDA device on the CPU, for tests: enough of one to run the examples' kernels and to be stricter
// than a GPU. One block at a time; its threads are fibers that switch only where CUDA lets threads
// meet (barriers, shuffles, ldmatrix, mma.sync), in an order that the test chooses, so a missing
// barrier shows. Copies by cp.async land either at once or at the last moment that PTX allows.
//
// Checked besides the results: that all lanes reach the same collective instruction; that nobody
// waits for ever; that ldmatrix and cp.async stay inside the block's shared memory and aligned; that
// cp.async reads only memory that is the kernel's; that ldmatrix and cp.async have no bank conflict;
// that nothing writes behind a buffer or behind the dynamic shared memory. Shared memory and the
// surroundings of every buffer start as NaNs. hopper.h has what sm_90 added.
#pragma once

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) alignas(n)

namespace device {

struct Size {
  unsigned x = 1, y = 1, z = 1;
};

constexpr int lanes = 32;
constexpr size_t guard = 256;  // bytes of NaN around every buffer
constexpr size_t stack_bytes = 256 << 10;
constexpr size_t shared_bytes = 232448;  // the most that a block can have on sm_90

enum class Order { forward, backward, random };
struct Options {
  bool late_copies = true;
  Order order = Order::forward;
  unsigned seed = 0;
};

struct Copy {
  unsigned to;
  const void *from;
  int bytes, read;
};

struct Thread {
  ucontext_t context{};
  Size index;
  int number = 0;
  bool done = false, waiting = false;
  std::vector<Copy> open;                 // since the last commit
  std::vector<std::vector<Copy>> groups;  // committed and not waited for, oldest first
  std::vector<unsigned> copied_to;        // the shared address of every cp.async, in order
};

struct Warp {
  const char *instruction = nullptr;
  void *operands[lanes] = {};
  int arrived = 0;
};

struct Buffer {
  unsigned char *memory;  // guard, then the data, then guard
  size_t bytes;
  unsigned char *data() const { return memory + guard; }
};

alignas(1024) inline unsigned char shared_memory[shared_bytes + guard];
inline size_t dynamic_bytes = 0;
inline std::vector<Buffer> buffers;
inline std::vector<Thread> threads;
inline std::vector<Warp> warps;
inline Thread *current = nullptr;
inline ucontext_t scheduler;
inline Size block_index, block_size, grid_size;
inline int at_barrier = 0, alive = 0;
inline Options options;
inline long ldmatrix_conflicts = 0, copy_conflicts = 0, collectives = 0;

[[noreturn]] inline void fail(const std::string &why) {
  const Size t = current ? current->index : Size{0, 0, 0};
  std::printf("block %u,%u thread %u,%u,%u: %s\n", block_index.x, block_index.y, t.x, t.y, t.z, why.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

inline void pause() {
  current->waiting = true;
  Thread *self = current;
  while (self->waiting) swapcontext(&self->context, &scheduler);
}

// Everybody of the warp arrives with operands; the last one performs `perform(operands[32])` for all.
template <class Operands, class Perform>
void collective(const char *instruction, Operands &mine, Perform perform) {
  const int lane = current->number % lanes;
  Warp &warp = warps[current->number / lanes];
  if (warp.arrived == 0) warp.instruction = instruction;
  if (std::strcmp(warp.instruction, instruction) != 0)
    fail(std::string("lanes of one warp are at ") + warp.instruction + " and at " + instruction);
  warp.operands[lane] = &mine;
  if (++warp.arrived < lanes) return pause();
  Operands *all[lanes];
  for (int i = 0; i < lanes; ++i) all[i] = static_cast<Operands *>(warp.operands[i]);
  perform(all);
  ++collectives;
  warp.arrived = 0;
  const int first = current->number / lanes * lanes;
  for (int i = 0; i < lanes; ++i) threads[first + i].waiting = false;
}

inline void release_barrier_if_full() {
  if (alive == 0 || at_barrier < alive) return;
  at_barrier = 0;
  for (Thread &t : threads) t.waiting = false;
}

inline unsigned char *shared_at(unsigned address, int bytes, const char *instruction) {
  if (address % bytes) fail(std::string(instruction) + ": shared address is not aligned");
  if (address + bytes > dynamic_bytes)
    fail(std::string(instruction) + ": shared address " + std::to_string(address) + " is outside of the block's " +
         std::to_string(dynamic_bytes) + " bytes");
  return shared_memory + address;
}

inline void land(const Copy &copy) {
  unsigned char *to = shared_at(copy.to, copy.bytes, "cp.async");
  std::memset(to, 0, copy.bytes);
  std::memcpy(to, copy.from, copy.read);
}

inline void copy_async(unsigned to, const void *from, int bytes, int read) {
  const auto *first = static_cast<const unsigned char *>(from);
  bool ours = read == 0;
  for (const Buffer &b : buffers) ours = ours || (first >= b.data() && first + read <= b.data() + b.bytes);
  if (!ours) fail("cp.async reads outside of every buffer");
  if (reinterpret_cast<uintptr_t>(from) % bytes) fail("cp.async: global address is not aligned");
  shared_at(to, bytes, "cp.async");
  current->copied_to.push_back(to);
  const Copy copy{to, from, bytes, read};
  if (options.late_copies)
    current->open.push_back(copy);
  else
    land(copy);
}

inline void commit_copies() {
  current->groups.push_back(std::move(current->open));
  current->open.clear();
}

inline void wait_copies(size_t newest) {
  auto &groups = current->groups;
  while (groups.size() > newest) {
    for (const Copy &copy : groups.front()) land(copy);
    groups.erase(groups.begin());
  }
}

// Eight lanes access 16 bytes each at once: without conflict when they cover all 32 banks, or are alike.
inline int conflicts(const unsigned *addresses) {
  int most = 0;
  for (int bank = 0; bank < 8; ++bank) {
    std::vector<unsigned> distinct;
    for (int i = 0; i < 8; ++i)
      if (addresses[i] / 16 % 8 == unsigned(bank)) distinct.push_back(addresses[i]);
    std::sort(distinct.begin(), distinct.end());
    most = std::max(most, int(std::unique(distinct.begin(), distinct.end()) - distinct.begin()));
  }
  return most - 1;
}

inline void count_copy_conflicts() {
  for (size_t first = 0; first + 8 <= threads.size(); first += 8)
    for (size_t i = 0; i < threads[first].copied_to.size(); ++i) {
      unsigned addresses[8];
      for (int t = 0; t < 8; ++t) addresses[t] = threads[first + t].copied_to.at(i);
      copy_conflicts += conflicts(addresses);
    }
}

// ---- numbers -----------------------------------------------------------------------------------------

inline float from_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline float from_f16(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  float value = exponent == 31  ? (mantissa ? NAN : INFINITY)
                : exponent == 0 ? std::ldexp(float(mantissa), -24)
                                : std::ldexp(float(1024 + mantissa), exponent - 25);
  return h & 0x8000 ? -value : value;
}
inline uint16_t to_f16(float f) {
  const uint16_t sign = std::signbit(f) ? 0x8000 : 0;
  f = std::fabs(f);
  if (std::isnan(f)) return 0x7fff;
  if (f >= 65520.0f) return sign | 0x7c00;
  if (f == 0) return sign;
  int exponent;
  std::frexp(f, &exponent);
  const int scale = std::max(exponent, -13) - 11;  // of the last bit
  const auto ulps = static_cast<int>(std::nearbyint(std::ldexp(f, -scale)));
  return sign | uint16_t(ulps + (scale + 24) * 1024);  // the hidden bit carries into the exponent
}
inline float from_bf16(uint16_t h) { return from_bits(uint32_t(h) << 16); }
inline uint16_t to_bf16(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if (std::isnan(f)) return 0x7fff;
  return uint16_t((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// ---- PTX ---------------------------------------------------------------------------------------------

template <int count>
void ldmatrix(const char *instruction, bool transposed, unsigned address, unsigned (&result)[count]) {
  struct Operands {
    unsigned address;
    unsigned *result;
  } mine{address, result};
  collective(instruction, mine, [&](Operands **all) {
    uint16_t element[count][8][8];
    for (int matrix = 0; matrix < count; ++matrix) {
      unsigned addresses[8];
      for (int row = 0; row < 8; ++row) {
        addresses[row] = all[matrix * 8 + row]->address;
        std::memcpy(element[matrix][row], shared_at(addresses[row], 16, instruction), 16);
      }
      ldmatrix_conflicts += conflicts(addresses);
    }
    for (int lane = 0; lane < lanes; ++lane)
      for (int matrix = 0; matrix < count; ++matrix) {
        const int i = lane / 4, j = lane % 4 * 2;
        const auto &e = element[matrix];
        const uint16_t low = transposed ? e[j][i] : e[i][j], high = transposed ? e[j + 1][i] : e[i][j + 1];
        all[lane]->result[matrix] = low | unsigned(high) << 16;
      }
  });
}

template <class Number>
void mma_m16n8k16(const char *instruction, Number number, float *d, const unsigned *a, const unsigned *b,
                  const float *c) {
  struct Operands {
    float *d;
    const unsigned *a, *b;
    const float *c;
  } mine{d, a, b, c};
  collective(instruction, mine, [&](Operands **all) {
    double left[16][16], right[16][8];
    for (int lane = 0; lane < lanes; ++lane) {
      const int g = lane / 4, t = lane % 4 * 2;
      for (int r = 0; r < 4; ++r)
        for (int half = 0; half < 2; ++half)
          left[g + r % 2 * 8][t + half + r / 2 * 8] = number(uint16_t(all[lane]->a[r] >> half * 16));
      for (int r = 0; r < 2; ++r)
        for (int half = 0; half < 2; ++half)
          right[t + half + r * 8][g] = number(uint16_t(all[lane]->b[r] >> half * 16));
    }
    for (int lane = 0; lane < lanes; ++lane)
      for (int r = 0; r < 4; ++r) {
        const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
        double sum = all[lane]->c[r];
        for (int l = 0; l < 16; ++l) sum += left[row][l] * right[l][column];
        all[lane]->d[r] = float(sum);
      }
  });
}

}  // namespace device

#include "hopper.h"

// The instructions by their names, with `_` for the dots: what translate.py makes of inline assembly.
namespace ptx {

#define LDMATRIX(name, transposed)                                                                       \
  inline void ldmatrix_sync_aligned_m8n8_x1##name(unsigned &a, unsigned address) {                       \
    unsigned r[1];                                                                                       \
    device::ldmatrix("ldmatrix.x1" #name, transposed, address, r);                                       \
    a = r[0];                                                                                            \
  }                                                                                                      \
  inline void ldmatrix_sync_aligned_m8n8_x2##name(unsigned &a, unsigned &b, unsigned address) {          \
    unsigned r[2];                                                                                       \
    device::ldmatrix("ldmatrix.x2" #name, transposed, address, r);                                       \
    a = r[0], b = r[1];                                                                                  \
  }                                                                                                      \
  inline void ldmatrix_sync_aligned_m8n8_x4##name(unsigned &a, unsigned &b, unsigned &c, unsigned &d,    \
                                                  unsigned address) {                                    \
    unsigned r[4];                                                                                       \
    device::ldmatrix("ldmatrix.x4" #name, transposed, address, r);                                       \
    a = r[0], b = r[1], c = r[2], d = r[3];                                                              \
  }
LDMATRIX(_shared_b16, false)
LDMATRIX(_trans_shared_b16, true)
#undef LDMATRIX

#define MMA(type)                                                                                        \
  inline void mma_sync_aligned_m16n8k16_row_col_f32_##type##_##type##_f32(                               \
      float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3,    \
      unsigned b0, unsigned b1, float c0, float c1, float c2, float c3) {                                \
    const unsigned a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};                                             \
    const float c[4] = {c0, c1, c2, c3};                                                                 \
    float d[4];                                                                                          \
    device::mma_m16n8k16("mma.m16n8k16." #type, device::from_##type, d, a, b, c);                        \
    d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];                                                          \
  }                                                                                                      \
  inline void cvt_rn_##type##x2_f32(unsigned &r, float high, float low) {                                \
    r = device::to_##type(low) | unsigned(device::to_##type(high)) << 16;                                \
  }
MMA(f16)
MMA(bf16)
#undef MMA

inline void cvt_f32_f16(float &to, unsigned short from) { to = device::from_f16(from); }
inline void cvt_rn_f16_f32(unsigned short &to, float from) { to = device::to_f16(from); }

#define COPY(name)                                                                        \
  inline void name(unsigned to, const void *from, int bytes) { device::copy_async(to, from, bytes, bytes); } \
  inline void name(unsigned to, const void *from, int bytes, int read) { device::copy_async(to, from, bytes, read); }
COPY(cp_async_cg_shared_global)
COPY(cp_async_ca_shared_global)
COPY(cp_async_cg_shared_global_L2_128B)
COPY(cp_async_ca_shared_global_L2_128B)
#undef COPY
inline void cp_async_commit_group() { device::commit_copies(); }
inline void cp_async_wait_group(int newest) { device::wait_copies(newest); }
inline void cp_async_wait_all() {
  device::commit_copies();
  device::wait_copies(0);
}

inline void ld_global_nc_L1_no_allocate_v4_b32(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *from) {
  const auto *p = static_cast<const unsigned *>(from);
  a = p[0], b = p[1], c = p[2], d = p[3];
}
inline void ld_global_nc_L1_no_allocate_v2_b32(unsigned &a, unsigned &b, const void *from) {
  const auto *p = static_cast<const unsigned *>(from);
  a = p[0], b = p[1];
}
inline void ld_global_nc_L1_no_allocate_b32(unsigned &a, const void *from) {
  a = *static_cast<const unsigned *>(from);
}
inline void st_global_cs_v4_b32(void *to, unsigned a, unsigned b, unsigned c, unsigned d) {
  auto *p = static_cast<unsigned *>(to);
  p[0] = a, p[1] = b, p[2] = c, p[3] = d;
}
inline void st_global_cs_v2_b32(void *to, unsigned a, unsigned b) {
  auto *p = static_cast<unsigned *>(to);
  p[0] = a, p[1] = b;
}
inline void st_global_cs_b32(void *to, unsigned a) { *static_cast<unsigned *>(to) = a; }

}  // namespace ptx

// ---- what CUDA C++ has built in ------------------------------------------------------------------------

inline device::Size threadIdx;  // set whenever a thread runs on
inline const device::Size &blockIdx = device::block_index;
inline const device::Size &blockDim = device::block_size;
inline const device::Size &gridDim = device::grid_size;

using std::max;
using std::min;

inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline unsigned __float_as_uint(float f) {
  unsigned u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float __uint_as_float(unsigned u) { return device::from_bits(u); }
inline size_t __cvta_generic_to_shared(const void *p) {
  return size_t(static_cast<const unsigned char *>(p) - device::shared_memory);
}
inline void __trap() { device::fail("__trap"); }
// Threads switch at no other place, so that an addition is whole.
inline int atomicAdd(int *to, int value) {
  const int old = *to;
  *to = old + value;
  return old;
}

inline void __threadfence() {}

inline void __syncthreads() {
  ++device::at_barrier;
  device::current->waiting = true;
  device::release_barrier_if_full();
  if (device::current->waiting) device::pause();
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int width = 32) {
  struct Operands {
    T value, result;
    int mask, width;
  } mine{value, {}, mask, width};
  device::collective("shfl.bfly", mine, [](Operands **all) {
    for (int lane = 0; lane < device::lanes; ++lane) {
      const int other = lane ^ all[lane]->mask;
      all[lane]->result = all[other / all[lane]->width == lane / all[lane]->width ? other : lane]->value;
    }
  });
  return mine.result;
}

namespace device {

// ---- a launch ------------------------------------------------------------------------------------------

template <class... P, size_t... I>
void call(void (*kernel)(P...), void **arguments, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_const_t<P> *>(arguments[I])...);
}

inline void (*run_thread)() = nullptr;
inline void thread_main() {
  run_thread();
  current->done = true;
  --alive;
  release_barrier_if_full();
  setcontext(&scheduler);
}

inline void run_block(std::vector<unsigned char *> &stacks) {
  const int count = int(block_size.x * block_size.y * block_size.z);
  if (count % lanes) fail("the tests run whole warps only");
  std::memset(shared_memory, 0xff, sizeof shared_memory);
  threads.assign(count, Thread{});
  warps.assign(count / lanes, Warp{});
  begin_hopper();
  alive = count;
  at_barrier = 0;
  for (int i = 0; i < count; ++i) {
    Thread &t = threads[i];
    t.number = i;
    t.index = {i % block_size.x, i / block_size.x % block_size.y, i / block_size.x / block_size.y};
    getcontext(&t.context);
    t.context.uc_stack.ss_sp = stacks[i];
    t.context.uc_stack.ss_size = stack_bytes;
    makecontext(&t.context, thread_main, 0);
  }
  // Whole warps run one behind the other until they wait: the most uneven progress that is allowed.
  std::vector<int> turn(count);
  for (int i = 0; i < count; ++i) turn[i] = options.order == Order::backward ? count - 1 - i : i;
  while (alive > 0) {
    if (options.order == Order::random)
      for (int i = count / lanes - 1; i > 0; --i) {
        options.seed = options.seed * 1664525u + 1013904223u;
        const int j = int((options.seed >> 8) % unsigned(i + 1));
        if (i == j) continue;
        std::swap_ranges(turn.begin() + i * lanes, turn.begin() + (i + 1) * lanes, turn.begin() + j * lanes);
      }
    bool progress = false;
    for (int w = 0; w < count / lanes; ++w)
      for (bool again = true; again;) {
        again = false;
        for (int i = w * lanes; i < (w + 1) * lanes; ++i) {
          Thread &t = threads[turn[i]];
          if (t.done || t.waiting) continue;
          current = &t;
          threadIdx = t.index;
          swapcontext(&scheduler, &t.context);
          current = nullptr;
          again = progress = true;
        }
      }
    if (!progress && !land_one())
      fail("deadlock: " + std::to_string(alive) + " threads wait, " + std::to_string(at_barrier) +
           " of them at a barrier");
  }
  for (size_t i = dynamic_bytes; i < sizeof shared_memory; ++i)
    if (shared_memory[i] != 0xff) fail("a write behind the dynamic shared memory");
  for (const Warp &warp : warps)
    if (warp.arrived) fail("threads left while their warp waits for them");
  end_hopper();
  count_copy_conflicts();
}

template <class T>
T read(std::FILE *file) {
  T value;
  if (std::fread(&value, sizeof value, 1, file) != 1) std::abort();
  return value;
}

// Reads one launch from a file, runs it, writes all buffers back and prints what was counted. The
// format is emulator.py's.
template <class... P>
int main(void (*kernel)(P...), const char *input, const char *output) {
  static void (*the_kernel)(P...) = kernel;
  static void *arguments[sizeof...(P)];
  std::FILE *file = std::fopen(input, "rb");
  for (unsigned *n : {&grid_size.x, &grid_size.y, &grid_size.z, &block_size.x, &block_size.y, &block_size.z})
    *n = read<uint32_t>(file);
  dynamic_bytes = read<uint32_t>(file);
  options.late_copies = read<uint32_t>(file);
  options.order = Order(read<uint32_t>(file));
  options.seed = read<uint32_t>(file);
  void **argument = arguments;
  for (auto left = read<uint32_t>(file); left; --left) {
    const auto kind = read<uint32_t>(file);  // 0 is a scalar, 1 a tensor, 2 one that only maps know
    const size_t shift = read<uint32_t>(file), bytes = read<uint64_t>(file);
    // A scalar needs no guards, but eight bytes to be copied from.
    auto *memory = static_cast<unsigned char *>(std::aligned_alloc(256, (bytes + shift + 3 * guard) / 256 * 256));
    std::memset(memory, 0xff, (bytes + shift + 3 * guard) / 256 * 256);
    unsigned char *data = memory + guard + shift;
    if (bytes && std::fread(data, bytes, 1, file) != 1) std::abort();
    if (kind) buffers.push_back({data - guard, bytes});
    if (kind == 2) continue;
    if (argument == arguments + sizeof...(P)) fail("too many arguments");
    *argument++ = kind ? new void *(data) : static_cast<void *>(data);
  }
  if (argument != arguments + sizeof...(P)) fail("too few arguments");
  std::fclose(file);

  run_thread = [] { call(the_kernel, arguments, std::index_sequence_for<P...>{}); };
  std::vector<unsigned char *> stacks(block_size.x * block_size.y * block_size.z);
  for (auto &stack : stacks)
    stack = static_cast<unsigned char *>(mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  for (block_index.z = 0; block_index.z < grid_size.z; ++block_index.z)
    for (block_index.y = 0; block_index.y < grid_size.y; ++block_index.y)
      for (block_index.x = 0; block_index.x < grid_size.x; ++block_index.x) run_block(stacks);

  file = std::fopen(output, "wb");
  for (const Buffer &b : buffers) {
    for (size_t i = 0; i < guard; ++i)
      if (b.memory[i] != 0xff || b.data()[b.bytes + i] != 0xff)
        fail("a write outside of a buffer");
    std::fwrite(b.data(), 1, b.bytes, file);
  }
  std::fclose(file);
  std::printf("%ld %ld %ld\n", ldmatrix_conflicts, copy_conflicts, collectives);
  return 0;
}

}  // namespace device
