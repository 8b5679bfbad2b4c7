/* A CUDA driver for tests: device memory is the host's, time passes when
   something is launched, and nothing happens before the host waits. FAKE_GPU_* variables set what
   the tests need. A kernel library calls `fake_kernel(ns)` where a real one would launch; one that
   is launched through the driver is taken for fill(float *y, int n), whose block size says how it
   does: 32 slowly, 64 fast, 128 wrong, 256 with a fault. With FAKE_GPU_MORE it takes a struct of an int
   and a float more, which y is multiplied by, and a tensor map, and adds the variable `start`.
   It is NVML, too: so many of its answers are that the power cap holds (FAKE_GPU_THROTTLED), or that
   another process is on the GPU (FAKE_GPU_SHARED); FAKE_GPU_MIG makes the GPU an instance of one.
   With FAKE_GPU_IDLE kernels do nothing but have their launch noted: name, grid, block, shared memory
   and the first four parameters, 32 bits of each. The one that FAKE_GPU_FAULT names faults. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t device_now, queued_until; /* nanoseconds: what is done, what is queued */
static int failed;
typedef struct { uint64_t at; } event;

static long setting(const char *name, long usual) {
  const char *text = getenv(name);
  return text ? atol(text) : usual;
}
static void note(const char *text, uint64_t number) {
  const char *path = getenv("FAKE_GPU_LOG");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (file) { fprintf(file, "%s %llu\n", text, (unsigned long long)number); fclose(file); }
}

/* A launch of its own comes later than the one before it ends, by a gap; in a graph there is none. A graph is its time.
   A wait makes the capture of one invalid. */
static int capturing;
static uint64_t captured;
static void queue(uint64_t nanoseconds) { *(capturing ? &captured : &queued_until) += nanoseconds; }
int cuStreamBeginCapture_v2(void *stream, int mode) {
  (void)stream;
  capturing = 1;
  captured = 0;
  return mode != 2;
}
int cuStreamEndCapture(void *stream, uint64_t **graph) {
  int status = capturing == 1 ? 0 : 901;
  (void)stream;
  capturing = 0;
  *graph = status ? NULL : malloc(sizeof **graph);
  if (*graph) **graph = captured;
  return status;
}
int cuGraphInstantiateWithFlags(uint64_t **executable, uint64_t *graph, uint64_t flags) {
  *executable = malloc(sizeof **executable);
  **executable = *graph;
  return flags != 0;
}
int cuGraphUpload(uint64_t *executable, void *stream) {
  (void)executable;
  (void)stream;
  return (int)setting("FAKE_GPU_UPLOAD", 0);
}
int cuGraphLaunch(uint64_t *executable, void *stream) {
  (void)stream;
  note("graph", *executable);
  queue(*executable);
  return failed;
}
int cuGraphDestroy(uint64_t *graph) { free(graph); return 0; }
int cuGraphExecDestroy(uint64_t *executable) { note("destroyed", *executable); free(executable); return 0; }

int fake_kernel(uint64_t nanoseconds) {
  queue(nanoseconds + (capturing ? 0 : (uint64_t)setting("FAKE_GPU_GAP_NS", 0)));
  note("kernel", nanoseconds);
  return 0;
}
void fake_fault(void) { failed = 700; }

int cuInit(unsigned flags) { return flags ? 1 : (int)setting("FAKE_GPU_INIT", 0); }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = (int)setting("FAKE_GPU_COUNT", 1); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, device == setting("FAKE_GPU_OTHER", -1) ? "Other GPU" : "Fake GPU");
  return 0;
}
int cuDeviceGetUuid_v2(void *uuid, int device) {
  for (int i = 0; i < 16; i++) ((unsigned char *)uuid)[i] = (unsigned char)(i + 16 * device);
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  (void)device;
  *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 38 ? 50 << 20 : 0;
  return 0;
}
int cuGetErrorName(int status, const char **name) {
  *name = status == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_SOMETHING";
  return 0;
}
static unsigned contexts;
int cuDevicePrimaryCtxRetain(void **context, int device) {
  (void)device;
  contexts = 1;
  *context = (void *)1;
  return 0;
}
int cuCtxSetCurrent(void *context) { return context ? 0 : 1; }
int cuStreamCreate(void **stream, unsigned flags) { (void)flags; *stream = (void *)2; return 0; }
int cuStreamSynchronize(void *stream) {
  (void)stream;
  if (capturing) {
    capturing = 2;
    return 900;
  }
  device_now = queued_until;
  return failed;
}
int cuMemAlloc_v2(uint64_t *address, size_t size) {
  note("allocate", size);
  return posix_memalign((void **)address, 256, size) ? 2 : 0;
}
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) {
  memcpy((void *)to, from, size);
  return failed;
}
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) {
  memcpy(to, (void *)from, size);
  return failed;
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
  (void)stream;
  memcpy((void *)to, (void *)from, size);
  return failed;
}
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t size, void *stream) {
  (void)to; (void)value; (void)stream;
  note("fill", size);
  queue(1000);
  return failed;
}
int cuEventCreate(event **made, unsigned flags) {
  (void)flags;
  *made = calloc(1, sizeof **made);
  return 0;
}
int cuEventRecord(event *recorded, void *stream) {
  (void)stream;
  /* Queueing costs the host time, in which the device goes on. */
  device_now += (uint64_t)setting("FAKE_GPU_HOST_NS", 2000);
  if (queued_until < device_now) queued_until = device_now;
  recorded->at = queued_until;
  return failed;
}
int cuEventQuery(event *asked) { return asked->at <= device_now ? 0 : 600; }
int cuEventElapsedTime(float *milliseconds, event *start, event *end) {
  *milliseconds = (float)(end->at - start->at) / 1e6f;
  return failed;
}
int cuModuleLoadData(void **module, const void *image) {
  *module = (void *)3;
  return strstr(image, "tilusbuild_spin") ? (int)setting("FAKE_GPU_PTX", 0) : 1;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  (void)module; (void)name;
  *function = (void *)4;
  return 0;
}
int cuGetErrorString(int status, const char **text) { (void)status; *text = "as asked"; return 0; }
int cuCtxGetCurrent(void **context) { *context = (void *)1; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuCtxPushCurrent_v2(void *context) { (void)context; return 1; }
int cuCtxPopCurrent_v2(void **context) { (void)context; return 1; }
int cuPointerGetAttribute(void *value, int which, uint64_t pointer) {
  (void)which; (void)pointer;
  *(int *)value = 0;
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) { (void)mode; return 0; }
int cuLibraryLoadData(void **library, const void *image, void *a, void *b, unsigned c, void *d,
                      void *e, unsigned f) {
  (void)image; (void)a; (void)b; (void)c; (void)d; (void)e; (void)f;
  *library = (void *)6;
  return 0;
}
int cuLibraryUnload(void *library) { (void)library; return 0; }
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)library;
  *kernel = setting("FAKE_GPU_IDLE", 0) ? strdup(name) : (void *)7;
  return 0;
}
int cuKernelGetFunction(void **function, void *kernel) { *function = kernel; return 0; }
int cuKernelGetAttribute(int *value, int which, void *kernel, int device) {
  (void)which; (void)kernel; (void)device;
  *value = 49152;
  return 0;
}
int cuKernelSetAttribute(int which, int value, void *kernel, int device) {
  (void)which; (void)value; (void)kernel; (void)device;
  return 0;
}

static float start;
int cuLibraryGetGlobal(uint64_t *address, size_t *bytes, void *library, const char *name) {
  (void)library;
  *address = (uint64_t)&start;
  *bytes = sizeof start;
  return strcmp(name, "start") ? 500 : 0;
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t size, void *stream) {
  return cuMemcpyDtoDAsync_v2(to, from, size, stream);
}
int cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = capturing; return 0; }
int cuTensorMapEncodeTiled(unsigned char *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps,
                           int interleave, int swizzle, int promotion, int filled) {
  (void)type; (void)rank; (void)sizes; (void)strides; (void)box; (void)steps; (void)interleave;
  (void)swizzle; (void)promotion; (void)filled;
  memcpy(map, &address, sizeof address);
  return 0;
}

/* NVML's handles are 1 for the GPU and 2 for an instance. */
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu, compute; } process;
int nvmlInitWithFlags(unsigned flags) { return flags ? 2 : (int)setting("FAKE_GPU_NVML", 0); }
int nvmlDeviceGetHandleByUUID(const char *uuid, uintptr_t *device) {
  int instance = setting("FAKE_GPU_MIG", 0) != 0;
  *device = 1 + instance;
  return strcmp(uuid, instance ? "MIG-00010203-0405-0607-0809-0a0b0c0d0e0f"
                               : "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f") ? 6 : 0;
}
int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(uintptr_t instance, uintptr_t *device) {
  *device = 1;
  return instance != 2;
}
int nvmlDeviceGetCurrentClocksEventReasons(uintptr_t device, uint64_t *reasons) {
  static long answers;
  /* Always: the clocks are a user's. */
  *reasons = 2 | (contexts && ++answers <= setting("FAKE_GPU_THROTTLED", 0) ? 4 : 0);
  return device != 1;
}
/* As in a container, the numbers are those of the host. The list after the context is made is not disturbed. */
int nvmlDeviceGetComputeRunningProcesses_v3(uintptr_t device, unsigned *count, process *processes) {
  static long lists;
  unsigned room = *count, others = lists && lists <= setting("FAKE_GPU_SHARED", 0);
  *count = contexts + others;
  if (*count > room) return 7;
  lists += contexts;
  for (unsigned i = 0; i < *count; i++) processes[i].pid = 4000000 + i;
  return device != 1 + (setting("FAKE_GPU_MIG", 0) != 0);
}

static int fill(unsigned threads, void **parameters) {
  float *y = *(float **)parameters[0], times = 1;
  int n = *(int *)parameters[1];
  if (setting("FAKE_GPU_MORE", 0)) {
    struct { int a; float times; } *p = parameters[2];
    if (*(float **)parameters[3] != y || p->a != n) return 1;
    times = p->times;
  }
  for (int i = 0; i < n; i++) y[i] = threads == 128 && i == 7 ? 0 : (float)i * times + start;
  if (threads == 256) failed = 700;
  return fake_kernel(threads == 32 ? 5000 : 3000);
}

static int idle(const char *name, const unsigned *config, void **parameters) {
  const char *path = getenv("FAKE_GPU_LOG"), *faulty = getenv("FAKE_GPU_FAULT");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (file) {
    fprintf(file, "launch %s", name);
    for (int i = 0; i < 7; i++) fprintf(file, " %u", config[i]);
    for (int i = 0; i < 4; i++) fprintf(file, " %u", *(unsigned *)parameters[i]);
    fprintf(file, "\n");
    fclose(file);
  }
  if (faulty && !strcmp(faulty, name)) failed = 700;
  queue(3000);
  return 0;
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
  (void)stream; (void)extra;
  if (function == (void *)7) return fill(bx, parameters);
  if (function != (void *)4) {
    const unsigned config[] = {gx, gy, gz, bx, by, bz, shared};
    return idle(function, config, parameters);
  }
  if (gx * gy * gz * bx * by * bz != 1 || shared) return 1;
  note("spin", *(uint64_t *)parameters[0]);
  queue(*(uint64_t *)parameters[0]);
  return failed;
}

int cuLaunchKernelEx(const unsigned *config, void *function, void **parameters, void **extra) {
  (void)extra;
  return function == (void *)7 ? fill(config[3], parameters) : idle(function, config, parameters);
}
