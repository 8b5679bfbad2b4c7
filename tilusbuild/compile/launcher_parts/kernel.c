/* The launch of a kernel: its grid and block, its parameters and tensor maps. */

/* Grid, block and dynamic shared memory, in this order. */
#ifdef TL_ATTRIBUTES
enum { TL_GRID = 0, TL_BLOCK = 3, TL_SHARED = 6, TL_CLUSTER = 7, TL_COOPERATIVE = 10, TL_PDL = 11,
       TL_CARVE_OUT = 12, TL_GEOMETRY = 13 };
#else
enum { TL_GRID = 0, TL_BLOCK = 3, TL_SHARED = 6, TL_GEOMETRY = 7 };
#endif
static int tl_geometry(const int64_t *number, int64_t *geometry);

#ifdef TL_ATTRIBUTES
static int64_t tl_cluster_blocks(const int64_t *g) {
  return g[TL_CLUSTER] * g[TL_CLUSTER + 1] * g[TL_CLUSTER + 2];
}

static int tl_check_cluster(const int64_t *g) {
  const int64_t *cluster = g + TL_CLUSTER;
  for (int i = 0; i < 3; i++) {
    if (cluster[i] < 1 || cluster[i] > 16)
      return tl_fail("ValueError", "cluster.%c is %lld, outside 1..16", "xyz"[i], (long long)cluster[i]);
    if (g[TL_GRID + i] % cluster[i])
      return tl_fail("ValueError", "grid.%c is %lld, which is not a multiple of cluster.%c, %lld", "xyz"[i],
                     (long long)g[TL_GRID + i], "xyz"[i], (long long)cluster[i]);
  }
  if (tl_cluster_blocks(g) > 16)
    return tl_fail("ValueError", "a cluster of (%lld, %lld, %lld) has more than 16 blocks",
                   (long long)cluster[0], (long long)cluster[1], (long long)cluster[2]);
  return 0;
}

/* What the kernel itself must be told before a launch, once a device. */
static int tl_prepare_attributes(int ordinal, const int64_t *g) {
  static uint8_t told[TL_DEVICES]; /* bit 0: the carve-out, bit 1: that clusters may be large */
  const struct { int wanted, attribute, value; const char *what; } each[] = {
    {g[TL_CARVE_OUT] >= 0, TL_PREFERRED_CARVE_OUT, (int)g[TL_CARVE_OUT], "a carve-out of shared memory"},
    {tl_cluster_blocks(g) > 8, TL_NON_PORTABLE_CLUSTER, 1, "a cluster of more than 8 blocks"},
  };
  tl_result error = 0;
  int device = 0;
  pthread_mutex_lock(&tl_lock);
  tl_driver.device_get(&device, ordinal);
  for (int i = 0; i < 2 && !error; i++) {
    if (!each[i].wanted || told[ordinal] >> i & 1) continue;
    if ((error = tl_driver.kernel_set(each[i].attribute, each[i].value, tl_kernel, device)))
      error = tl_driver_failed(error, "device %d cannot have %s", ordinal, each[i].what);
    else told[ordinal] |= (uint8_t)(1 << i);
  }
  pthread_mutex_unlock(&tl_lock);
  return error;
}

static int tl_launch(const int64_t *g, void *stream, void **parameters) {
  tl_attribute attributes[TL_MOST_ATTRIBUTES];
  tl_launch_config config = {.shared = (uint32_t)g[TL_SHARED], .stream = stream, .attributes = attributes};
  memset(attributes, 0, sizeof attributes);
  for (int i = 0; i < 3; i++) {
    config.grid[i] = (uint32_t)g[TL_GRID + i];
    config.block[i] = (uint32_t)g[TL_BLOCK + i];
  }
  if (tl_cluster_blocks(g) > 1) {
    tl_attribute *cluster = &attributes[config.count++];
    cluster->id = TL_ATTRIBUTE_CLUSTER;
    for (int i = 0; i < 3; i++) cluster->value.cluster[i] = (uint32_t)g[TL_CLUSTER + i];
  }
  for (int i = TL_COOPERATIVE; i <= TL_PDL; i++) {
    if (!g[i]) continue;
    attributes[config.count].id = i == TL_PDL ? TL_ATTRIBUTE_PDL : TL_ATTRIBUTE_COOPERATIVE;
    attributes[config.count++].value.enabled = 1;
  }
  tl_result error = tl_driver.launch(&config, tl_kernel, parameters, NULL);
  if (!error) return 0;
  return tl_driver_failed(
      error, "the launch failed: grid (%lld, %lld, %lld), block (%lld, %lld, %lld), %lld bytes of dynamic "
      "shared memory, cluster (%lld, %lld, %lld)%s%s", (long long)g[0], (long long)g[1], (long long)g[2],
      (long long)g[3], (long long)g[4], (long long)g[5], (long long)g[TL_SHARED], (long long)g[TL_CLUSTER],
      (long long)g[TL_CLUSTER + 1], (long long)g[TL_CLUSTER + 2], g[TL_COOPERATIVE] ? ", cooperative" : "",
      g[TL_PDL] ? ", programmatic dependent" : "");
}

#endif
/* 1: nothing to do, because some size is 0. */
static int tl_check_geometry(const tl_call *call, const int64_t *g) {
  static const int64_t most[] = {2147483647, 65535, 65535, 1024, 1024, 64};
  for (int i = 0; i < 3; i++) {
    if (g[i]) continue;
    for (int k = 0; k < TL_ARGUMENTS; k++)
      if (!tl_arguments[k].passed && call->number[k] == 0) return 1;
  }
  for (int i = 0; i < 6; i++)
    if (g[i] < 1 || g[i] > most[i])
      return tl_fail("ValueError", "%s.%c is %lld, outside 1..%lld", i < TL_BLOCK ? "grid" : "block",
                     "xyz"[i % 3], (long long)g[i], (long long)most[i]);
  if (g[3] * g[4] * g[5] > 1024)
    return tl_fail("ValueError", "a block of (%lld, %lld, %lld) has more than 1024 threads",
                   (long long)g[3], (long long)g[4], (long long)g[5]);
  if (g[TL_SHARED] < 0 || g[TL_SHARED] > 2147483646)
    return tl_fail("ValueError", "the dynamic shared memory is %lld bytes", (long long)g[TL_SHARED]);
#ifdef TL_ATTRIBUTES
  if (tl_check_cluster(g)) return -1;
#endif
  return 0;
}

static int tl_first_pointer_device(const tl_call *call) {
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    int device;
#ifdef TL_CONSTANTS
    if (tl_is_constant[i]) continue; /* it may be the host's */
#endif
    if (tl_arguments[i].rank == TL_SCALAR || !call->value[i].pointer) continue;
    if (!tl_driver.pointer_attribute(&device, TL_POINTER_DEVICE, (uintptr_t)call->value[i].pointer))
      return device;
  }
  return -1;
}

#ifdef TL_TENSOR_MAPS
enum { TL_MAP_RANK = 5 };
typedef struct { void *address; uint64_t size[TL_MAP_RANK], stride[TL_MAP_RANK]; } tl_mapped;

/* The memory of a map, the innermost dimension first; strides are bytes. */
static int tl_map_memory(const tl_call *call, const tl_map_of *of, tl_mapped *found) {
  int64_t dense = of->bytes;
  memset(found, 0, sizeof *found);
  found->address = call->value[of->tensor].pointer;
  for (int axis = of->rank - 1, at = 0; axis >= 0; axis--, at++) {
    int64_t size, stride = dense;
    if (tl_size_of(call, &tl_dims[of->sizes + axis], &size)) return -1;
    if (of->strides >= 0) {
      if (tl_size_of(call, &tl_dims[of->strides + axis], &stride)) return -1;
      stride *= of->bytes;
    }
    if (size < 1)
      return tl_fail("ValueError", "the tensor map \"%s\" of \"%s\": axis %d has no elements", tl_strings + of->name,
                     tl_name_of(of->tensor), axis);
    if (at ? stride < 0 || stride % 16 : stride != of->bytes) {
      if (size > 1)
        return tl_fail("ValueError", "the tensor map \"%s\" of \"%s\": axis %d has a stride of %lld bytes, which "
                       "must be %s", tl_strings + of->name, tl_name_of(of->tensor), axis, (long long)stride,
                       at ? "a multiple of 16" : "an element's");
      stride = (dense + 15) / 16 * 16; /* nobody goes along it: any multiple will do */
    }
    found->size[at] = (uint64_t)size;
    found->stride[at] = (uint64_t)stride;
    dense *= size;
  }
  if ((uintptr_t)found->address % 16)
    return tl_fail("ValueError", "the tensor map \"%s\" of \"%s\": its address is not a multiple of 16 bytes",
                   tl_strings + of->name, tl_name_of(of->tensor));
  return 0;
}

/* Makes a tensor map, or takes the one that this thread made last of the same memory: a map is its
   numbers, encoded, and holds nothing of the memory. */
static int tl_encode(const tl_call *call, int which, tl_map *map) {
  static __thread struct { tl_mapped memory; tl_map map; int made; } last[TL_MAP_COUNT + 1];
  const tl_map_of *of = &tl_maps[which];
  const int rank = of->rank;
  const int64_t *slot = &tilus_constants[of->slot], *width = slot + 2 * rank;
  uint32_t box[TL_MAP_RANK], steps[TL_MAP_RANK];
  tl_mapped memory;
  if (tl_map_memory(call, of, &memory)) return -1;
  if (!last[which].made || memcmp(&memory, &last[which].memory, sizeof memory)) {
    for (int at = 0; at < rank; at++) {
      box[at] = (uint32_t)slot[rank - 1 - at];
      steps[at] = (uint32_t)slot[2 * rank - 1 - at];
    }
    last[which].made = 0;
    tl_result error = tl_driver.encode(
        &last[which].map, of->type, (uint32_t)rank, memory.address, memory.size, memory.stride + 1, box, steps,
        (int)width[0] / 16, width[1] == 128 ? 3 : (int)width[1] / 32, width[2] == 256 ? 3 : (int)width[2] / 64,
        of->nan);
    if (error)
      return tl_driver_failed(error, "there can be no tensor map \"%s\" of \"%s\"", tl_strings + of->name,
                              tl_name_of(of->tensor));
    last[which].memory = memory;
    last[which].made = 1;
  }
  *map = last[which].map;
  return 0;
}

#endif
#ifdef TL_PACKED
/* Writes the structs that the kernel takes and no caller passes. */
static int tl_pack(const tl_call *call, const int64_t *g, tl_value *packed) {
  memset(packed, 0, TL_PACKED_SIZE * sizeof *packed);
  for (size_t i = 0; i < sizeof tl_members / sizeof *tl_members; i++) {
    const tl_member_of *member = &tl_members[i];
    const int64_t *number = &g[TL_GEOMETRY - 1 - member->from];
    if (member->from < 0 && (*number < member->low || *number > member->high))
      return tl_fail("ValueError", "%s is %lld, outside %lld..%lld", tl_strings + member->name, (long long)*number,
                     (long long)member->low, (long long)member->high);
    memcpy((char *)packed + member->offset, member->from < 0 ? (const void *)number : &call->value[member->from],
           member->bytes);
  }
  return 0;
}

#endif
#ifdef TL_CONSTANTS
static int tl_fill(const tl_call *call, int ordinal, void *stream);

#endif
#ifdef TL_ZEROED
static int tl_zero(void *memory, size_t bytes, void *stream) {
  tl_result error = tl_driver.fill((uintptr_t)memory, 0, bytes, stream);
  return error ? tl_driver_failed(error, "a workspace cannot be filled with zeros") : 0;
}

#endif
static int tl_start(tl_call *call, void *stream, int stream_given) {
#ifdef TL_PACKED
  int64_t g[TL_GEOMETRY + TL_COMPUTED_COUNT];
  tl_value packed[TL_PACKED_SIZE];
#else
  int64_t g[TL_GEOMETRY];
#endif
#ifdef TL_CONSTANTS
  static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER;
#endif
#ifdef TL_PARAMETERS
  void *parameters[TL_PARAMETER_COUNT + 1], *null = NULL;
#else
  void *parameters[TL_ARGUMENTS + 1];
#endif
#ifdef TL_TENSOR_MAPS
  tl_map maps[TL_MAP_COUNT + 1];
#endif
  int error, ordinal = 0, pushed;
  if ((error = tl_geometry(call->number, g))) return error;
  if ((error = tl_check_geometry(call, g))) return error > 0 ? 0 : error;
#ifdef TL_PACKED
  if ((error = tl_pack(call, g, packed))) return error;
#endif
  if ((error = tl_ready())) return error;
  if (stream_given) {
    tl_context current = NULL;
    if (!tl_driver.context_current(&current) && !current) call->device = tl_first_pointer_device(call);
  }
  if ((error = tl_enter(call->device, &ordinal, &pushed))) return error;
  if (!stream_given) {
    void *(*current)(int32_t, int32_t);
    *(void **)&current = tl_ffi_function("TVMFFIEnvGetStream");
    if (current) stream = current(TL_ON_CUDA, ordinal);
  }
#ifdef TL_PARAMETERS
  for (int i = 0; i < TL_PARAMETER_COUNT; i++) {
    int from = tl_parameters[i];
    if (from < 0) parameters[i] = &null;
#ifdef TL_PACKED
    else if (from >= TL_ARGUMENTS) parameters[i] = &packed[from - TL_ARGUMENTS];
#endif
    else parameters[i] = tl_struct_bytes[from] ? call->value[from].pointer : &call->value[from];
  }
#else
  for (int i = 0; i < TL_ARGUMENTS; i++) parameters[i] = &call->value[i];
#endif
#ifdef TL_TENSOR_MAPS
  for (int i = 0; i < TL_PARAMETER_COUNT && !error; i++) {
    int which = -1 - tl_parameters[i];
    if (which < 0 || which >= TL_MAP_COUNT) continue;
    error = tl_encode(call, which, &maps[which]);
    parameters[i] = &maps[which];
  }
#endif
#ifdef TL_ZEROED
  if (!error) error = tl_zero_workspaces(call, stream);
#endif
#ifdef TL_CONSTANTS
  /* No other thread's copy may come between these and the launch that is to read them. */
  pthread_mutex_lock(&filling);
  if (!error && !(error = tl_prepare(ordinal, g[TL_SHARED]))) error = tl_fill(call, ordinal, stream);
  if (error) { /* nothing is launched */ } else
#endif
#if defined TL_TENSOR_MAPS || defined TL_ZEROED
  if (error) { /* nothing is launched */ } else
#endif
#ifdef TL_ATTRIBUTES
  if (!(error = tl_prepare(ordinal, g[TL_SHARED])) && !(error = tl_prepare_attributes(ordinal, g)))
    error = tl_launch(g, stream, parameters);
#else
  if (!(error = tl_prepare(ordinal, g[TL_SHARED]))) {
    error = tl_driver.launch(tl_kernel, (unsigned)g[0], (unsigned)g[1], (unsigned)g[2],
                             (unsigned)g[3], (unsigned)g[4], (unsigned)g[5],
                             (unsigned)g[TL_SHARED], stream, parameters, NULL);
    if (error)
      error = tl_driver_failed(
          error, "the launch failed: grid (%lld, %lld, %lld), block (%lld, %lld, %lld), %lld bytes of "
          "dynamic shared memory", (long long)g[0], (long long)g[1], (long long)g[2],
          (long long)g[3], (long long)g[4], (long long)g[5], (long long)g[TL_SHARED]);
  }
#endif
#ifdef TL_CONSTANTS
  pthread_mutex_unlock(&filling);
#endif
  if (pushed) {
    tl_context ours;
    tl_driver.context_pop(&ours);
  }
  return error;
}
