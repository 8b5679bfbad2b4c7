/* The CUDA driver, which is opened at the first launch. The code is loaded as a
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
#ifdef TL_ZEROED
  tl_result (*fill)(uint64_t to, unsigned char byte, size_t bytes, void *stream);
#endif
#ifdef TL_TENSOR_MAPS
  tl_result (*encode)(tl_map *map, int type, uint32_t rank, void *address, const uint64_t *sizes,
                      const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                      int swizzle, int promotion, int fill);
#endif
} tl_driver_functions;

static const struct { uint16_t place; char name[34]; } tl_driver_names[] = {
#define TL_DRIVER(field, name) {offsetof(tl_driver_functions, field), name}
#ifdef TL_CONSTANTS
  TL_DRIVER(library_global, "cuLibraryGetGlobal"),
  TL_DRIVER(copy, "cuMemcpyAsync"),
  TL_DRIVER(is_capturing, "cuStreamIsCapturing"),
  TL_DRIVER(synchronize, "cuStreamSynchronize"),
#endif
#ifdef TL_ZEROED
  TL_DRIVER(fill, "cuMemsetD8Async"),
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

/* Adds what the driver says of an error, and returns it. */
TL_COLD static int tl_add_driver_error(tl_result error) {
  const char *name = NULL, *text = NULL;
  tl_driver.error_name(error, &name);
  tl_driver.error_string(error, &text);
  tl_add(": %s (%s)", name ? name : "unknown error", text ? text : "");
  return error;
}

#define tl_driver_failed(error, ...) (tl_fail("RuntimeError", __VA_ARGS__), tl_add_driver_error(error))

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
