// What Hopper added, for device.h: mbarriers, tiles that come and go by tensor maps (TMA), wgmma,
// named barriers. What is asynchronous happens as late as PTX allows: a product reads its tiles, and
// writes its sums, when it is waited for, and a store reads its tile then. A tile lands at once or, with
// `late_copies`, when nobody can go on without it. So a stage that is filled again too early, or read
// before it is full, gives other numbers.
//
// TMA and wgmma see shared memory through the async proxy, which is a memory of its own here: what a
// thread stores gets there when that thread fences. Their swizzle is of addresses: bits 4 to 6 are
// crossed with bits 7 to 9. Sources: PTX ISA, "Tensor Map", "Matrix Descriptor Format", "Strides" and
// "Register Fragments for wgmma.mma_async.m64nNk16".
#pragma once

#include <map>
#include <tuple>

#define __grid_constant__

struct CUtensorMap {  // of a dense matrix; emulator.py packs it
  uint32_t tensor, size[2], box[2], element, swizzle;  // inner dimension first
};

namespace device {

struct MBarrier {
  unsigned arrivals = 0, phase = 0;
  long pending = 0, bytes = 0;
  std::vector<Thread *> waiting;
};
struct Load {
  CUtensorMap map;
  unsigned to, bar;
  int x, y;
};
struct Store {
  CUtensorMap map;
  unsigned from;
  int x, y;
};
struct Product {
  std::vector<float *> sums;
  unsigned long long a, b;
  bool add;
  float (*number)(uint16_t);
};
struct Hopper {  // of a thread
  std::vector<std::pair<unsigned, int>> stored;  // since its last fence
  std::vector<Store> open_stores;
  std::vector<std::vector<Store>> stores;
  std::vector<Product> open_products;
  std::vector<std::vector<Product>> products;
};

alignas(1024) inline unsigned char async_memory[shared_bytes + guard];
inline std::map<unsigned, MBarrier> mbarriers;
inline std::map<int, std::vector<Thread *>> named;
inline std::vector<Load> loads;
inline std::vector<Hopper> hoppers;

inline Hopper &mine() { return hoppers[current->number]; }

inline void begin_hopper() {
  std::memset(async_memory, 0xff, sizeof async_memory);
  mbarriers.clear();
  named.clear();
  loads.clear();
  hoppers.assign(threads.size(), Hopper{});
}

inline void wake(std::vector<Thread *> &asleep) {
  for (Thread *each : asleep) each->waiting = false;
  asleep.clear();
}

inline MBarrier &mbarrier_at(unsigned address) {
  shared_at(address, 8, "mbarrier");
  const auto found = mbarriers.find(address);
  if (found == mbarriers.end()) fail("an mbarrier that is not initialised");
  return found->second;
}

inline void complete(MBarrier &bar) {
  if (bar.pending < 0) fail("an mbarrier has more arrivals than were announced");
  if (bar.pending || bar.bytes) return;
  ++bar.phase;
  bar.pending = bar.arrivals;
  wake(bar.waiting);
}

inline unsigned swizzled(unsigned address, unsigned swizzle) {
  if (swizzle != 128) fail("only tiles that are swizzled by 128 bytes are emulated");
  return address ^ (address >> 7 & 7) << 4;
}

template <class Move>
void each_element(const CUtensorMap &map, unsigned shared, int x, int y, Move move) {
  const unsigned row = map.box[0] * map.element;
  if (row != map.swizzle) fail("a row of the tile is not as long as its swizzle");
  if (shared % 1024) fail("a swizzled tile is not aligned to 1024 bytes");
  if (shared + row * map.box[1] > dynamic_bytes) fail("a tile is outside of the block's shared memory");
  for (unsigned r = 0; r < map.box[1]; ++r)
    for (unsigned c = 0; c < map.box[0]; ++c) {
      const long across = long(x) + c, down = long(y) + r;
      const bool inside = across >= 0 && down >= 0 && across < map.size[0] && down < map.size[1];
      unsigned char *global =
          inside ? buffers.at(map.tensor).data() + (down * map.size[0] + across) * map.element : nullptr;
      move(swizzled(shared + r * row + c * map.element, map.swizzle), global, map.element);
    }
}

inline void land(const Load &load) {
  each_element(load.map, load.to, load.x, load.y, [](unsigned to, unsigned char *global, unsigned bytes) {
    if (global)
      std::memcpy(async_memory + to, global, bytes);
    else
      std::memset(async_memory + to, 0, bytes);
    std::memcpy(shared_memory + to, async_memory + to, bytes);
  });
  MBarrier &bar = mbarrier_at(load.bar);
  bar.bytes -= long(load.map.box[0]) * load.map.box[1] * load.map.element;
  complete(bar);
}

// Nobody can go on: has the tile land that was asked for last, as no order is promised.
inline bool land_one() {
  if (loads.empty()) return false;
  const Load load = loads.back();
  loads.pop_back();
  land(load);
  return true;
}

inline void leave(const Store &store) {
  each_element(store.map, store.from, store.x, store.y, [](unsigned from, unsigned char *global, unsigned bytes) {
    if (global) std::memcpy(global, async_memory + from, bytes);
  });
}

// What a warp has of a product: c[4 * j + i] of a lane is one element. A is K-major: 64 rows, eight of
// them `stride` apart. B is N-major: 64 columns, then the next 64 `leading` bytes on; k by eight.
inline void multiply(const Product *const (&all)[lanes], int warp) {
  const Product &first = *all[0];
  const auto field = [](unsigned long long descriptor, int from) { return unsigned(descriptor >> from & 0x3fff) << 4; };
  const auto at = [&](unsigned address) {
    uint16_t bits;
    if (address + 2 > dynamic_bytes) fail("wgmma reads outside of the block's shared memory");
    std::memcpy(&bits, async_memory + swizzled(address, 128), 2);
    return double(first.number(bits));
  };
  if (first.a >> 62 != 1 || first.b >> 62 != 1) fail("only operands that are swizzled by 128 bytes are emulated");
  const int n = int(first.sums.size()) * 2;
  std::vector<double> right(16 * n);
  for (int k = 0; k < 16; ++k)
    for (int j = 0; j < n; ++j)
      right[k * n + j] =
          at(field(first.b, 0) + j % 64 * 2 + j / 64 * field(first.b, 16) + k % 8 * 128 + k / 8 * field(first.b, 32));
  double left[16][16];
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < 16; ++k) {
      const int row = warp % 4 * 16 + r;
      left[r][k] = at(field(first.a, 0) + row % 8 * 128 + row / 8 * field(first.a, 32) + k * 2);
    }
  for (int lane = 0; lane < lanes; ++lane) {
    const Product &own = *all[lane];
    if (own.a != first.a || own.b != first.b || own.add != first.add) fail("lanes give wgmma other operands");
    for (int i = 0; i < n / 2; ++i) {
      const int row = lane / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      double sum = own.add ? *own.sums[i] : 0;
      for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k * n + column];
      *own.sums[i] = float(sum);
    }
  }
}

inline void multiply_groups(size_t newest) {
  struct Nothing {
  } none;
  collective("wgmma.wait_group", none, [&](Nothing **) {
    const int warp = current->number / lanes;
    Hopper *all = &hoppers[warp * lanes];
    while (all[0].products.size() > newest) {
      for (size_t i = 0; i < all[0].products.front().size(); ++i) {
        const Product *each[lanes];
        for (int lane = 0; lane < lanes; ++lane) each[lane] = &all[lane].products.front().at(i);
        multiply(each, warp);
      }
      for (int lane = 0; lane < lanes; ++lane) all[lane].products.erase(all[lane].products.begin());
    }
  });
}

inline void end_hopper() {
  if (!loads.empty()) fail("a block ended while tiles were on their way");
  for (const Hopper &each : hoppers) {
    if (!each.open_stores.empty() || !each.stores.empty()) fail("a block ended while a store read its shared memory");
    if (!each.open_products.empty() || !each.products.empty()) fail("a block ended while products were under way");
  }
}

template <class... Arguments, size_t... I>
Product product(float (*number)(uint16_t), const std::tuple<Arguments...> &given, std::index_sequence<I...>) {
  constexpr size_t count = sizeof...(I);
  if (std::get<count + 3>(given) != 1 || std::get<count + 4>(given) != 1 || std::get<count + 5>(given) != 0 ||
      std::get<count + 6>(given) != 1)
    fail("only wgmma of A by rows and B by columns, not negated, is emulated");
  return {{&std::get<I>(given)...}, std::get<count>(given), std::get<count + 1>(given), bool(std::get<count + 2>(given)),
          number};
}

template <class... Arguments>
void wgmma(float (*number)(uint16_t), Arguments &&...arguments) {
  struct Nothing {
  } none;
  collective("wgmma.mma_async", none, [](Nothing **) {});
  constexpr size_t count = sizeof...(Arguments) - 7;
  mine().open_products.push_back(
      product(number, std::forward_as_tuple(arguments...), std::make_index_sequence<count>{}));
}

}  // namespace device

namespace ptx {

inline void mbarrier_init_shared_cta_b64(unsigned bar, unsigned arrivals) {
  device::shared_at(bar, 8, "mbarrier.init");
  device::MBarrier made;
  made.arrivals = arrivals;
  made.pending = arrivals;
  device::mbarriers[bar] = made;
}
inline void mbarrier_inval_shared_cta_b64(unsigned bar) { device::mbarriers.erase(bar); }
inline void fence_mbarrier_init_release_cluster() {}
inline void prefetch_tensormap(const void *) {}
// No kernel of the examples calls these.
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(unsigned, const void *, unsigned, unsigned) {
  device::fail("cp.async.bulk without a tensor map is not emulated");
}
inline void cp_async_bulk_global_shared_cta_bulk_group(void *, unsigned, unsigned) {
  device::fail("cp.async.bulk without a tensor map is not emulated");
}
inline void mbarrier_arrive_shared_cta_b64(unsigned long long &, unsigned bar) {
  device::MBarrier &found = device::mbarrier_at(bar);
  --found.pending;
  device::complete(found);
}
inline void mbarrier_arrive_expect_tx_shared_cta_b64(unsigned long long &state, unsigned bar, unsigned bytes) {
  device::mbarrier_at(bar).bytes += bytes;
  mbarrier_arrive_shared_cta_b64(state, bar);
}
inline void mbarrier_try_wait_parity_shared_cta_b64(unsigned &done, unsigned bar, unsigned parity) {
  device::MBarrier &found = device::mbarrier_at(bar);
  done = found.phase % 2 != parity;
  if (done) return;
  found.waiting.push_back(device::current);
  device::pause();
}
inline void selp_u32(unsigned &to, unsigned yes, unsigned no, unsigned which) { to = which ? yes : no; }
inline void setp_ne_b32(unsigned &to, int a, int b) { to = a != b; }

inline void bar_sync(int id, unsigned count) {
  auto &asleep = device::named[id];
  asleep.push_back(device::current);
  if (asleep.size() == count) {
    device::wake(asleep);
    return;
  }
  device::pause();
}

inline void st_shared_b32(unsigned to, unsigned value) {
  std::memcpy(device::shared_at(to, 4, "st.shared"), &value, 4);
  device::mine().stored.emplace_back(to, 4);
}
inline void fence_proxy_async_shared_cta() {
  for (const auto &[to, bytes] : device::mine().stored)
    std::memcpy(device::async_memory + to, device::shared_memory + to, bytes);
  device::mine().stored.clear();
}

inline void cp_async_bulk_tensor_2d_shared_cluster_global_mbarrier_complete_tx_bytes(
    unsigned to, const void *map, int x, int y, unsigned bar) {
  const device::Load load{*static_cast<const CUtensorMap *>(map), to, bar, x, y};
  if (device::options.late_copies)
    device::loads.push_back(load);
  else
    device::land(load);
}
inline void cp_async_bulk_tensor_2d_global_shared_cta_bulk_group(const void *map, int x, int y, unsigned from) {
  device::mine().open_stores.push_back({*static_cast<const CUtensorMap *>(map), from, x, y});
}
inline void cp_async_bulk_commit_group() {
  device::Hopper &own = device::mine();
  own.stores.push_back(std::move(own.open_stores));
  own.open_stores.clear();
}
inline void cp_async_bulk_wait_group_read(size_t newest) {
  auto &groups = device::mine().stores;
  for (; groups.size() > newest; groups.erase(groups.begin()))
    for (const device::Store &store : groups.front()) device::leave(store);
}

inline void wgmma_fence_sync_aligned() {}
inline void wgmma_commit_group_sync_aligned() {
  device::Hopper &own = device::mine();
  own.products.push_back(std::move(own.open_products));
  own.open_products.clear();
}
inline void wgmma_wait_group_sync_aligned(size_t newest) { device::multiply_groups(newest); }
inline void setmaxnreg_dec_sync_aligned_u32(int) {}
inline void setmaxnreg_inc_sync_aligned_u32(int) {}

#define WGMMA(n, type)                                                                        \
  template <class... A>                                                                       \
  void wgmma_mma_async_sync_aligned_m64n##n##k16_f32_##type##_##type(A &&...arguments) {      \
    static_assert(sizeof...(A) == n / 2 + 7);                                                 \
    device::wgmma(device::from_##type, std::forward<A>(arguments)...);                        \
  }
WGMMA(64, f16)
WGMMA(128, f16)
WGMMA(256, f16)
WGMMA(64, bf16)
WGMMA(128, bf16)
WGMMA(256, bf16)
#undef WGMMA

}  // namespace ptx
