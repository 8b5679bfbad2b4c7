/* A CUDA driver of no device, for tests of the launcher: it answers as the real one does and writes
   each call to the file $FAKE_CUDA_JOURNAL. $FAKE_CUDA_DEVICES says how many devices there are,
   $FAKE_CUDA_FAIL="function=error" makes one function fail, $FAKE_CUDA_PARAMETERS="f32 ptr i32"
   says what the kernel's parameters are, $FAKE_CUDA_ARCHS="90 80" the compute capability of each
   device, 8.9 without it. Device memory is made up: its addresses are mapped nowhere, and have the device above
   bit 40, a 7 there for pinned memory. What is mapped is the host's, and pageable;
   $FAKE_CUDA_VARIABLES="filter:36 scale:4" says what variables the code has, $FAKE_CUDA_CAPTURING=1 that
   each stream is captured, $FAKE_CUDA_PAGEABLE=1 that devices read pageable memory. Built with -DOLD it is a driver of before CUDA 12. */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { int device; int primary; } context;
static context primaries[8] = {{0, 1}, {1, 1}, {2, 1}, {3, 1}, {4, 1}, {5, 1}, {6, 1}, {7, 1}};
static context own[8] = {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}};
static __thread context *stack[16];
static __thread int depth;
static __thread int capture_mode;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void say(const char *format, ...) {
  const char *path = getenv("FAKE_CUDA_JOURNAL");
  char line[1024];
  va_list rest;
  va_start(rest, format);
  vsnprintf(line, sizeof line, format, rest);
  va_end(rest);
  if (!path) return;
  pthread_mutex_lock(&lock);
  FILE *file = fopen(path, "a");
  fprintf(file, "%s\n", line);
  fclose(file);
  pthread_mutex_unlock(&lock);
}

static int fails(const char *name) {
  const char *wanted = getenv("FAKE_CUDA_FAIL");
  size_t length = strlen(name);
  if (!wanted || strncmp(wanted, name, length) || wanted[length] != '=') return 0;
  return atoi(wanted + length + 1);
}

static int devices(void) {
  const char *count = getenv("FAKE_CUDA_DEVICES");
  return count ? atoi(count) : 1;
}

static const char *where(void) {
  static __thread char text[32];
  if (!depth) return "none";
  snprintf(text, sizeof text, "%s%d", stack[depth - 1]->primary ? "primary" : "own",
           stack[depth - 1]->device);
  return text;
}

#define START(name) do { int error = fails(name); if (error) { say("%s fails", name); return error; } } while (0)

int cuInit(unsigned flags) { START("cuInit"); say("cuInit %u", flags); return 0; }
int cuGetErrorName(int error, const char **text) {
  *text = error == 209 ? "CUDA_ERROR_NO_BINARY_FOR_GPU" : error == 100 ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
  return 0;
}
int cuGetErrorString(int error, const char **text) { (void)error; *text = "a fake error"; return 0; }
int cuDeviceGet(int *device, int ordinal) {
  if (ordinal < 0 || ordinal >= devices()) return 101;
  *device = ordinal;
  return 0;
}
static int capability(int device) {
  const char *text = getenv("FAKE_CUDA_ARCHS");
  int found = 0, used = 0;
  for (int i = 0; text && i <= device && sscanf(text, "%d%n", &found, &used) == 1; i++) text += used;
  return found ? found : 89;
}
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = devices(); return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  snprintf(name, size, "Fake sm_%d", capability(device));
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int arch = capability(device);
  *value = attribute == 97 ? 101376 : attribute == 75 ? arch / 10 : attribute == 76 ? arch % 10
           : attribute == 88 && getenv("FAKE_CUDA_PAGEABLE") ? 1 : 0;
  return 0;
}
int cuDevicePrimaryCtxRetain(context **made, int device) {
  START("cuDevicePrimaryCtxRetain");
  say("cuDevicePrimaryCtxRetain %d", device);
  *made = &primaries[device];
  return 0;
}
int cuCtxGetCurrent(context **current) { *current = depth ? stack[depth - 1] : NULL; return 0; }
int cuCtxGetDevice(int *device) {
  if (!depth) return 201;
  *device = stack[depth - 1]->device;
  return 0;
}
int cuCtxPushCurrent_v2(context *pushed) { stack[depth++] = pushed; say("push %s", where()); return 0; }
int cuCtxPopCurrent_v2(context **popped) {
  say("pop %s", where());
  *popped = stack[--depth];
  return 0;
}
/* Not by the address: where the heap is depends on the interpreter, Debian's has it low. */
static int is_mapped(uint64_t pointer) {
  unsigned char present;
  return mincore((void *)(pointer & ~(uint64_t)4095), 1, &present) == 0;
}
int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
  if (attribute == 2 && !is_mapped(pointer) && pointer >> 40 <= 7) {
    *(int *)value = pointer >> 40 == 7 ? 1 : 2;
    return 0;
  }
  if (attribute == 3) *(uint64_t *)value = pointer;
  if (attribute != 9) return attribute != 3;
  *(int *)value = (int)(pointer >> 40); /* tests put the device into the address */
  return 0;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
  int before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return 0;
}

#ifndef OLD
static int allowed[8];

int cuLibraryLoadData(void **library, const void *image, void *a, void *b, unsigned c, void *d,
                      void *e, unsigned f) {
  (void)a; (void)b; (void)c; (void)d; (void)e; (void)f;
  START("cuLibraryLoadData");
  say("cuLibraryLoadData %.8s mode=%d", (const char *)image, capture_mode);
  usleep(20000);
  *library = (void *)0x1000;
  return 0;
}
int cuLibraryUnload(void *library) { say("cuLibraryUnload %p", library); return 0; }
int cuLibraryGetKernel(void **kernel, void *library, const char *name) {
  (void)library;
  START("cuLibraryGetKernel");
  say("cuLibraryGetKernel %s", name);
  *kernel = (void *)0x2000;
  return 0;
}
int cuLibraryGetGlobal(uint64_t *address, size_t *bytes, void *library, const char *name) {
  char variables[256];
  const char *described = getenv("FAKE_CUDA_VARIABLES");
  char *rest = variables, *each;
  (void)library;
  START("cuLibraryGetGlobal");
  say("cuLibraryGetGlobal %s in %s mode=%d", name, where(), capture_mode);
  snprintf(variables, sizeof variables, "%s", described ? described : "");
  for (int i = 0; (each = strsep(&rest, " ")) && *each; i++) {
    size_t length = strlen(name);
    if (strncmp(each, name, length) || each[length] != ':') continue;
    *address = 0xc000 + 0x100 * (uint64_t)i + 0x10 * (uint64_t)stack[depth - 1]->device;
    *bytes = (size_t)atoi(each + length + 1);
    return 0;
  }
  return 500;
}
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void *stream) {
  char text[64] = "";
  START("cuMemcpyAsync");
  if (is_mapped(from))
    for (size_t i = 0; i < bytes && i < 16; i++) sprintf(text + 2 * i, "%02x", ((unsigned char *)from)[i]);
  else snprintf(text, sizeof text, "%#llx", (unsigned long long)from);
  say("copy %zu bytes %s to %#llx stream=%p", bytes, text, (unsigned long long)to, stream);
  usleep(500); /* another thread's turn, if it may */
  return 0;
}
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void *stream) {
  START("cuMemsetD8Async");
  say("fill %zu bytes at %#llx with %d stream=%p", bytes, (unsigned long long)to, byte, stream);
  return 0;
}
int cuStreamIsCapturing(void *stream, int *status) {
  (void)stream;
  START("cuStreamIsCapturing");
  *status = getenv("FAKE_CUDA_CAPTURING") != NULL;
  return 0;
}
int cuStreamSynchronize(void *stream) { say("cuStreamSynchronize %p", stream); return 0; }
int cuKernelGetFunction(void **function, void *kernel) {
  START("cuKernelGetFunction");
  say("cuKernelGetFunction in %s mode=%d", where(), capture_mode);
  *function = kernel;
  return 0;
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device) {
  (void)kernel;
  *value = attribute == 8 ? (allowed[device] ? allowed[device] : 49152) : 0;
  return 0;
}
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device) {
  (void)kernel;
  START("cuKernelSetAttribute");
  say("cuKernelSetAttribute %d=%d device=%d", attribute, value, device);
  if (value > 101376) return 1;
  allowed[device] = value;
  return 0;
}
#endif

static void parameters_text(char *text, void **parameters) {
  char kinds[256];
  const char *described = getenv("FAKE_CUDA_PARAMETERS");
  *text = 0;
  snprintf(kinds, sizeof kinds, "%s", described ? described : "");
  char *rest = kinds, *kind;
  for (int i = 0; (kind = strsep(&rest, " ")) && *kind; i++) {
    char one[256];
    if (!strcmp(kind, "f32")) snprintf(one, sizeof one, " %g", *(float *)parameters[i]);
    else if (!strcmp(kind, "f64")) snprintf(one, sizeof one, " %g", *(double *)parameters[i]);
    else if (!strcmp(kind, "i32")) snprintf(one, sizeof one, " %d", *(int *)parameters[i]);
    else if (!strcmp(kind, "i64")) snprintf(one, sizeof one, " %lld", *(long long *)parameters[i]);
    else if (!strcmp(kind, "u8")) snprintf(one, sizeof one, " %d", *(unsigned char *)parameters[i]);
    else if (!strncmp(kind, "bytes", 5)) /* as many, as digits */
      for (int at = 0, used = snprintf(one, sizeof one, " "); at < atoi(kind + 5); at++)
        used += snprintf(one + used, sizeof one - used, "%02x", ((unsigned char *)parameters[i])[at]);
    else snprintf(one, sizeof one, " %p", *(void **)parameters[i]);
    strcat(text, one);
  }
}

int cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **parameters, void **extra) {
  char text[512];
  START("cuLaunchKernel");
  parameters_text(text, parameters);
  (void)kernel; (void)extra;
  say("launch in %s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%p parameters:%s", where(), gx, gy,
      gz, bx, by, bz, shared, stream, text);
  return 0;
}

/* cuda.h: CUlaunchConfig. */
typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  struct { int id; char padding[4]; union { unsigned cluster[3]; int enabled; char bytes[64]; } value; } *attributes;
  unsigned count;
} launch_config;

int cuLaunchKernelEx(const launch_config *asked, void *kernel, void **parameters, void **extra) {
  char text[512], attributes[256] = "";
  START("cuLaunchKernelEx");
  parameters_text(text, parameters);
  for (unsigned i = 0; i < asked->count; i++) {
    char one[256];
    const unsigned *cluster = asked->attributes[i].value.cluster;
    if (asked->attributes[i].id == 4) snprintf(one, sizeof one, " cluster=%u,%u,%u", cluster[0], cluster[1], cluster[2]);
    else snprintf(one, sizeof one, " %d=%d", asked->attributes[i].id, asked->attributes[i].value.enabled);
    strcat(attributes, one);
  }
  (void)kernel; (void)extra;
  say("launch in %s grid=%u,%u,%u block=%u,%u,%u shared=%u stream=%p%s%s parameters:%s", where(),
      asked->grid[0], asked->grid[1], asked->grid[2], asked->block[0], asked->block[1], asked->block[2],
      asked->shared, asked->stream, *attributes ? " attributes:" : "", attributes, text);
  return 0;
}

int cuTensorMapEncodeTiled(unsigned char *map, int type, unsigned rank, void *address, const uint64_t *sizes,
                           const uint64_t *strides, const unsigned *box, const unsigned *steps,
                           int interleave, int swizzle, int promotion, int fill) {
  static int made;
  char text[512];
  int used = 0;
  START("cuTensorMapEncodeTiled");
  memset(map, 0xa0 + __atomic_fetch_add(&made, 1, __ATOMIC_RELAXED), 128); /* so that a launch tells it */
  for (unsigned i = 0; i < rank; i++)
    used += snprintf(text + used, sizeof text - used, " %llu:%lld:%u:%u", (unsigned long long)sizes[i],
                     i ? (long long)strides[i - 1] : 0, box[i], steps[i]);
  say("map type=%d at %p%s interleave=%d swizzle=%d promotion=%d fill=%d aligned=%d", type, address, text,
      interleave, swizzle, promotion, fill, (uintptr_t)map % 64 == 0);
  return 0;
}

/* What Triton's launcher calls, too. Limits and sizes are 0, and a block may have 1024 threads. */
int cuCtxGetLimit(size_t *value, int limit) { (void)limit; *value = 0; return 0; }
int cuCtxSetLimit(int limit, size_t value) { (void)limit; (void)value; return 0; }
int cuCtxSetCurrent(context *current) { depth = 1; stack[0] = current; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) {
  (void)function;
  *value = attribute ? 0 : 1024;
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) { (void)function; (void)attribute; (void)value; return 0; }
int cuFuncSetCacheConfig(void *function, int config) { (void)function; (void)config; return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  say("cuModuleGetFunction %s", name);
  *function = module;
  return 0;
}
int cuModuleLoadData(void **module, const void *image) { (void)image; *module = (void *)0x3000; return 0; }
int cuModuleUnload(void *module) { (void)module; return 0; }

/* For the tests: a context of the thread's own. */
void fake_make_current(int device) { stack[depth++] = &own[device]; }
const char *fake_current(void) { return where(); }
