/* The launch through the CUDA driver, which is opened at the first one. The code is loaded as a
   context-independent library once for the process, so that any device, context and thread can
   launch it; what belongs to a device is kept for each. */
typedef int tl_result;
typedef struct tl_context_st *tl_context;

/* cuda.h: CUresult, CUfunction_attribute, CUdevice_attribute, CUpointer_attribute. */
enum {
  TL_NOT_FOUND = 500, TL_NO_BINARY = 209, TL_INVALID_PTX = 218, TL_UNSUPPORTED_PTX = 222,
  TL_MAX_DYNAMIC_SHARED = 8, TL_SHARED_PER_BLOCK_OPTIN = 97, TL_CAPABILITY_MAJOR = 75,
  TL_CAPABILITY_MINOR = 76, TL_POINTER_DEVICE = 9, TL_CAPTURE_RELAXED = 2
};

/* Written by the program's own object. */
extern const unsigned char tilus_image[] TL_HIDDEN;
extern const int64_t tilus_constants[] TL_HIDDEN;
extern const char tilus_archs[] TL_HIDDEN;

#ifdef TL_ATTRIBUTES
/* cuda.h: CUlaunchAttributeID, CUlaunchAttribute, CUlaunchConfig. */
enum { TL_ATTRIBUTE_COOPERATIVE = 2, TL_ATTRIBUTE_CLUSTER = 4, TL_ATTRIBUTE_PDL = 6, TL_MOST_ATTRIBUTES = 3 };
enum { TL_PREFERRED_CARVE_OUT = 9, TL_NON_PORTABLE_CLUSTER = 14 };
typedef struct {
  int32_t id, padding;
  union { uint32_t cluster[3]; int32_t enabled; char bytes[64]; } value;
} tl_attribute;
typedef struct {
  uint32_t grid[3], block[3], shared;
  void *stream;
  tl_attribute *attributes;
  uint32_t count;
} tl_launch_config;

#endif
#ifdef TL_TENSOR_MAPS
typedef struct { _Alignas(64) unsigned char bytes[128]; } tl_map; /* cuda.h: CUtensorMap */

#endif
typedef struct {
  tl_result (*init)(unsigned flags);
  tl_result (*error_name)(tl_result error, const char **text);
  tl_result (*error_string)(tl_result error, const char **text);
  tl_result (*device_get)(int *device, int ordinal);
  tl_result (*device_attribute)(int *value, int attribute, int device);
  tl_result (*primary_retain)(tl_context *context, int device);
  tl_result (*context_current)(tl_context *context);
  tl_result (*context_device)(int *device);
  tl_result (*context_push)(tl_context context);
  tl_result (*context_pop)(tl_context *context);
  tl_result (*pointer_attribute)(void *value, int attribute, uint64_t pointer);
  tl_result (*capture_mode)(int *mode);
  tl_result (*library_load)(void **library, const void *image, void *, void *, unsigned, void *,
                            void *, unsigned);
  tl_result (*library_unload)(void *library);
  tl_result (*library_kernel)(void **kernel, void *library, const char *name);
  tl_result (*kernel_function)(void **function, void *kernel);
  tl_result (*kernel_get)(int *value, int attribute, void *kernel, int device);
  tl_result (*kernel_set)(int attribute, int value, void *kernel, int device);
#ifdef TL_ATTRIBUTES
  tl_result (*launch)(const tl_launch_config *config, void *kernel, void **parameters, void **extra);
#else
  tl_result (*launch)(void *kernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                      unsigned shared, void *stream, void **parameters, void **extra);
#endif
#ifdef TL_CONSTANTS
  tl_result (*library_global)(uint64_t *address, size_t *bytes, void *library, const char *name);
  tl_result (*copy)(uint64_t to, uint64_t from, size_t bytes, void *stream);
  tl_result (*is_capturing)(void *stream, int *status);
  tl_result (*synchronize)(void *stream);
#endif
#ifdef TL_TENSOR_MAPS
  tl_result (*encode)(tl_map *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                      const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                      int swizzle, int promotion, int fill);
#endif
} tl_driver_functions;

static const struct { const char *name; size_t place; } tl_driver_names[] = {
#define TL_DRIVER(field, name) {name, offsetof(tl_driver_functions, field)}
#ifdef TL_CONSTANTS
  TL_DRIVER(library_global, "cuLibraryGetGlobal"),
  TL_DRIVER(copy, "cuMemcpyAsync"),
  TL_DRIVER(is_capturing, "cuStreamIsCapturing"),
  TL_DRIVER(synchronize, "cuStreamSynchronize"),
#endif
#ifdef TL_TENSOR_MAPS
  TL_DRIVER(encode, "cuTensorMapEncodeTiled"),
#endif
  TL_DRIVER(init, "cuInit"),
  TL_DRIVER(error_name, "cuGetErrorName"),
  TL_DRIVER(error_string, "cuGetErrorString"),
  TL_DRIVER(device_get, "cuDeviceGet"),
  TL_DRIVER(device_attribute, "cuDeviceGetAttribute"),
  TL_DRIVER(primary_retain, "cuDevicePrimaryCtxRetain"),
  TL_DRIVER(context_current, "cuCtxGetCurrent"),
  TL_DRIVER(context_device, "cuCtxGetDevice"),
  TL_DRIVER(context_push, "cuCtxPushCurrent_v2"),
  TL_DRIVER(context_pop, "cuCtxPopCurrent_v2"),
  TL_DRIVER(pointer_attribute, "cuPointerGetAttribute"),
  TL_DRIVER(capture_mode, "cuThreadExchangeStreamCaptureMode"),
  TL_DRIVER(library_load, "cuLibraryLoadData"),
  TL_DRIVER(library_unload, "cuLibraryUnload"),
  TL_DRIVER(library_kernel, "cuLibraryGetKernel"),
  TL_DRIVER(kernel_function, "cuKernelGetFunction"),
  TL_DRIVER(kernel_get, "cuKernelGetAttribute"),
  TL_DRIVER(kernel_set, "cuKernelSetAttribute"),
#ifdef TL_ATTRIBUTES
  TL_DRIVER(launch, "cuLaunchKernelEx"),
#else
  TL_DRIVER(launch, "cuLaunchKernel"),
#endif
#undef TL_DRIVER
};

enum { TL_DEVICES = 64 };
typedef struct {
  tl_context primary; /* retained when a launch found no context of this device */
  int64_t shared;     /* bytes of dynamic shared memory that a block may have; 0: not asked yet */
} tl_device_state;

static pthread_mutex_t tl_lock = PTHREAD_MUTEX_INITIALIZER;
static tl_driver_functions tl_driver; /* complete before tl_kernel is set */
static int tl_driver_started;
static void *tl_kernel;
#ifdef TL_CONSTANTS
static void *tl_library; /* set before tl_kernel is */
#endif
static tl_device_state tl_devices[TL_DEVICES];

static int tl_driver_failed(tl_result error, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static int tl_driver_failed(tl_result error, const char *format, ...) {
  tl_text what = {.used = 0};
  const char *name = NULL, *text = NULL;
  va_list rest;
  va_start(rest, format);
  vsnprintf(what.text, sizeof what.text, format, rest);
  va_end(rest);
  tl_driver.error_name(error, &name);
  tl_driver.error_string(error, &text);
  tl_fail("RuntimeError", "%s: %s (%s)", what.text, name ? name : "unknown error", text ? text : "");
  return error;
}

static int tl_open_driver(void) {
  tl_driver_functions found;
  if (tl_driver_started) return 0;
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return tl_fail("RuntimeError",
                   "no CUDA driver was found on this machine (libcuda.so.1 cannot be loaded: %s)",
                   dlerror());
  for (size_t i = 0; i < sizeof tl_driver_names / sizeof *tl_driver_names; i++) {
    void *function = dlsym(library, tl_driver_names[i].name);
    if (!function)
      return tl_fail("RuntimeError",
                     "the CUDA driver has no %s: a driver of CUDA 12.0 or later is needed",
                     tl_driver_names[i].name);
    memcpy((char *)&found + tl_driver_names[i].place, &function, sizeof function);
  }
  tl_driver = found;
  tl_result error = tl_driver.init(0);
  if (error) return tl_driver_failed(error, "the CUDA driver cannot start");
  tl_driver_started = 1;
  return 0;
}

static int tl_find_driver(void) {
  pthread_mutex_lock(&tl_lock);
  int error = tl_open_driver();
  pthread_mutex_unlock(&tl_lock);
  return error;
}

static int tl_load(void) {
  void *library, *kernel;
  tl_result error;
  int mode = TL_CAPTURE_RELAXED;
  if ((error = tl_open_driver())) return error;
  /* A stream of this thread may be captured into a graph: loading must not break that. */
  tl_driver.capture_mode(&mode);
  error = tl_driver.library_load(&library, tilus_image, NULL, NULL, 0, NULL, NULL, 0);
  if (error) {
    error = tl_driver_failed(error, "the kernel (built for %s) cannot be loaded", tilus_archs);
  } else if ((error = tl_driver.library_kernel(&kernel, library, tl_name))) {
    error = tl_driver_failed(error, "the kernel (built for %s) was not found", tilus_archs);
    tl_driver.library_unload(library);
  }
  tl_driver.capture_mode(&mode);
#ifdef TL_CONSTANTS
  if (!error) tl_library = library;
#endif
  if (!error) __atomic_store_n(&tl_kernel, kernel, __ATOMIC_RELEASE);
  return error;
}

static int tl_ready(void) {
  int error = 0;
  if (__atomic_load_n(&tl_kernel, __ATOMIC_ACQUIRE)) return 0;
  pthread_mutex_lock(&tl_lock);
  if (!tl_kernel) error = tl_load();
  pthread_mutex_unlock(&tl_lock);
  return error;
}

/* Makes a context of the wanted device current, unless one is. -1 wants the current one. */
static int tl_enter(int wanted, int *ordinal, int *pushed) {
  tl_context current = NULL, primary;
  tl_result error;
  int device, now;
  *pushed = 0;
  if ((error = tl_driver.context_current(&current))) return tl_driver_failed(error, "cuCtxGetCurrent");
  if (current && (error = tl_driver.context_device(&now))) return tl_driver_failed(error, "cuCtxGetDevice");
  if (wanted < 0) wanted = current ? now : 0;
  if (wanted >= TL_DEVICES)
    return tl_fail("RuntimeError", "device %d is beyond the %d that can be used", wanted, TL_DEVICES);
  *ordinal = wanted;
  if ((error = tl_driver.device_get(&device, wanted)))
    return tl_driver_failed(error, "there is no CUDA device %d", wanted);
  if (current && now == device) return 0;
  pthread_mutex_lock(&tl_lock);
  primary = tl_devices[wanted].primary;
  if (!primary && !(error = tl_driver.primary_retain(&primary, device)))
    tl_devices[wanted].primary = primary;
  pthread_mutex_unlock(&tl_lock);
  if (error) return tl_driver_failed(error, "device %d has no context", wanted);
  if ((error = tl_driver.context_push(primary))) return tl_driver_failed(error, "cuCtxPushCurrent");
  *pushed = 1;
  return 0;
}

/* Loads the kernel on the device, and allows its blocks as much shared memory as it asks for. */
static int tl_prepare(int ordinal, int64_t shared) {
  tl_device_state *state = &tl_devices[ordinal];
  tl_result error = 0;
  int device = 0, limit = 0, most = 0, major = 0, minor = 0, mode = TL_CAPTURE_RELAXED;
  void *function;
  int64_t allowed = __atomic_load_n(&state->shared, __ATOMIC_ACQUIRE);
  if (allowed > shared) return 0; /* one more than the bytes, so that 0 says nothing */
  pthread_mutex_lock(&tl_lock);
  tl_driver.device_get(&device, ordinal);
  tl_driver.capture_mode(&mode);
  error = tl_driver.kernel_function(&function, tl_kernel);
  tl_driver.capture_mode(&mode);
  if (error) {
    tl_driver.device_attribute(&major, TL_CAPABILITY_MAJOR, device);
    tl_driver.device_attribute(&minor, TL_CAPABILITY_MINOR, device);
    error = tl_driver_failed(error, "the kernel is built for %s and cannot be loaded on device %d (sm_%d%d)",
                             tilus_archs, ordinal, major, minor);
  } else if ((error = tl_driver.kernel_get(&limit, TL_MAX_DYNAMIC_SHARED, tl_kernel, device))) {
    error = tl_driver_failed(error, "cuKernelGetAttribute");
  } else if (shared > limit) {
    error = tl_driver.kernel_set(TL_MAX_DYNAMIC_SHARED, (int)shared, tl_kernel, device);
    if (error) {
      tl_driver.device_attribute(&most, TL_SHARED_PER_BLOCK_OPTIN, device);
      error = tl_driver_failed(
          error, "a block needs %lld bytes of dynamic shared memory; device %d has at most %d for it",
          (long long)shared, ordinal, most);
    }
    limit = (int)shared;
  }
  if (!error) __atomic_store_n(&state->shared, (int64_t)limit + 1, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&tl_lock);
  return error;
}

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
      return tl_fail("ValueError", "grid.%c is %lld, which is no multiple of cluster.%c, %lld", "xyz"[i],
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
  const tl_argument *tensor = &tl_arguments[of->tensor];
  int64_t dense = of->bytes;
  memset(found, 0, sizeof *found);
  found->address = call->value[of->tensor].pointer;
  for (int axis = tensor->rank - 1, at = 0; axis >= 0; axis--, at++) {
    const tl_dim *dim = &tl_dims[tensor->first_dim + axis];
    int64_t size = dim->value, stride = dense;
    if (dim->kind == TL_DIM_ARGUMENT) size = call->number[dim->value];
    if (dim->kind == TL_DIM_EXPRESSION && tl_dimension((int)dim->value, call->number, &size)) return -1;
    if (tl_strides[of->tensor] >= 0) {
      dim = &tl_dims[tl_strides[of->tensor] + axis];
      stride = (dim->kind == TL_DIM_ARGUMENT ? call->number[dim->value] : dim->value) * of->bytes;
    }
    if (size < 1)
      return tl_fail("ValueError", "the tensor map \"%s\" of \"%s\": axis %d has no elements", of->name,
                     tensor->name, axis);
    if (size == 1) stride = (dense + 15) / 16 * 16; /* nobody goes along it: any multiple will do */
    else if (at ? stride < 0 || stride % 16 : stride != of->bytes)
      return tl_fail("ValueError", "the tensor map \"%s\" of \"%s\": axis %d has a stride of %lld bytes, which "
                     "must be %s", of->name, tensor->name, axis, (long long)stride,
                     at ? "a multiple of 16" : "an element's");
    found->size[at] = (uint64_t)size;
    found->stride[at] = (uint64_t)stride;
    dense *= size;
  }
  if ((uintptr_t)found->address % 16)
    return tl_fail("ValueError", "the tensor map \"%s\" of \"%s\": its address is no multiple of 16 bytes",
                   of->name, tensor->name);
  return 0;
}

/* Makes a tensor map, or takes the one that this thread made last of the same memory: a map is its
   numbers, encoded, and holds nothing of the memory. */
static int tl_encode(const tl_call *call, int which, tl_map *map) {
  static __thread struct { tl_mapped memory; tl_map map; int made; } last[TL_MAP_COUNT + 1];
  const tl_map_of *of = &tl_maps[which];
  const int rank = tl_arguments[of->tensor].rank;
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
      return tl_driver_failed(error, "there can be no tensor map \"%s\" of \"%s\"", of->name,
                              tl_arguments[of->tensor].name);
    last[which].memory = memory;
    last[which].made = 1;
  }
  *map = last[which].map;
  return 0;
}

#endif
#ifdef TL_CONSTANTS
static int tl_fill(const tl_call *call, int ordinal, void *stream);

#endif
static int tl_start(tl_call *call, void *stream, int stream_given) {
  int64_t g[TL_GEOMETRY];
#ifdef TL_CONSTANTS
  static pthread_mutex_t filling = PTHREAD_MUTEX_INITIALIZER;
#endif
#ifdef TL_PARAMETERS
  void *parameters[TL_PARAMETER_COUNT + 1];
#else
  void *parameters[TL_ARGUMENTS + 1];
#endif
#ifdef TL_TENSOR_MAPS
  tl_map maps[TL_MAP_COUNT + 1];
#endif
  int error, ordinal = 0, pushed;
  if ((error = tl_geometry(call->number, g))) return error;
  if ((error = tl_check_geometry(call, g))) return error > 0 ? 0 : error;
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
    if (from >= 0) parameters[i] = tl_struct_bytes[from] ? call->value[from].pointer : &call->value[from];
  }
#else
  for (int i = 0; i < TL_ARGUMENTS; i++) parameters[i] = &call->value[i];
#endif
#ifdef TL_TENSOR_MAPS
  for (int i = 0; i < TL_PARAMETER_COUNT && !error; i++) {
    int which = -1 - tl_parameters[i];
    if (which < 0) continue;
    error = tl_encode(call, which, &maps[which]);
    parameters[i] = &maps[which];
  }
#endif
#ifdef TL_CONSTANTS
  /* No other thread's copy may come between these and the launch that is to read them. */
  pthread_mutex_lock(&filling);
  if (!error && !(error = tl_prepare(ordinal, g[TL_SHARED]))) error = tl_fill(call, ordinal, stream);
  if (error) { /* nothing is launched */ } else
#endif
#ifdef TL_TENSOR_MAPS
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
