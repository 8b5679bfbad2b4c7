/* Included in what `tilusbuild cmake build` writes: finds the kernels beside this library, and opens the
   dispatcher of a script for the current device when it is first called. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { TK_DEVICES = 64 };
typedef struct { const char *file, *symbol; } tk_code;
/* Which code serves a GPU, by its compute capability; the list ends with 0. Code for the cpu has none. */
typedef struct { int capability, code; } tk_device;
typedef struct { void *launch, *workspace; const char *(*error)(void); } tk_opened;
typedef struct {
  const char *name;
  const tk_code *codes;
  const tk_device *devices;
  tk_opened opened[TK_DEVICES];
} tk_kernel;

static __thread char tk_message[1024];
static pthread_mutex_t tk_opening = PTHREAD_MUTEX_INITIALIZER;

static void tk_fail(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(tk_message, sizeof tk_message, format, list);
  va_end(list);
}

static void tk_symbol(void *library, const char *symbol, const char *end, void *into) {
  char name[512];
  void *found;
  snprintf(name, sizeof name, "%s%s", symbol, end);
  found = dlsym(library, name);
  memcpy(into, &found, sizeof found);
}

/* The driver is looked for once: a search costs what opening a file does. */
static struct {
  int (*init)(unsigned), (*current)(int *), (*get)(int *, int), (*of)(int *, int, int);
} tk_cuda;
static pthread_once_t tk_cuda_once = PTHREAD_ONCE_INIT;

static void tk_find_cuda(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver) return;
  tk_symbol(driver, "cuInit", "", &tk_cuda.init);
  tk_symbol(driver, "cuCtxGetDevice", "", &tk_cuda.current);
  tk_symbol(driver, "cuDeviceGet", "", &tk_cuda.get);
  tk_symbol(driver, "cuDeviceGetAttribute", "", &tk_cuda.of);
}

/* The GPU of the current context, else the first; -1 with a message, where there is none. */
static int tk_current(void) {
  int device = 0;
  pthread_once(&tk_cuda_once, tk_find_cuda);
  if (!tk_cuda.init || !tk_cuda.current || !tk_cuda.get || !tk_cuda.of) {
    tk_fail("no CUDA driver was found on this machine");
    return -1;
  }
  if (!tk_cuda.current(&device)) return device;
  if (!tk_cuda.init(0)) return 0;
  tk_fail("the CUDA driver does not start");
  return -1;
}

static int tk_code_for(const tk_kernel *kernel, int device) {
  const tk_device *each = kernel->devices;
  int handle, major = 0, minor = 0;
  if (!tk_cuda.get(&handle, device) && !tk_cuda.of(&major, 75, handle)) tk_cuda.of(&minor, 76, handle);
  while (each->capability && each->capability != major * 10 + minor) each++;
  if (each->capability) return each->code;
  tk_fail("%s has no code for GPU %d, sm_%d", kernel->name, device, major * 10 + minor);
  return -1;
}

static int tk_load(const tk_kernel *kernel, const tk_code *code, tk_opened *opened) {
  char path[4096];
  const char *slash;
  Dl_info info;
  void *library, *launch = NULL;
  if (!dladdr((const void *)&tk_opening, &info) || !info.dli_fname) {
    tk_fail("%s: cannot find itself", kernel->name);
    return -1;
  }
  slash = strrchr(info.dli_fname, '/');
  snprintf(path, sizeof path, "%.*s/%s/%s", slash ? (int)(slash - info.dli_fname) : 1,
           slash ? info.dli_fname : ".", TK_DIRECTORY, code->file);
  library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) { tk_fail("%s: %s", kernel->name, dlerror()); return -1; }
  tk_symbol(library, code->symbol, "_launch", &launch);
  tk_symbol(library, code->symbol, "_workspace", &opened->workspace);
  tk_symbol(library, code->symbol, "_error", &opened->error);
  if (!launch || !opened->error) { tk_fail("%s: %s exports no launch", kernel->name, path); return -1; }
  __atomic_store_n(&opened->launch, launch, __ATOMIC_RELEASE);
  return 0;
}

/* What is called on the current device; NULL with a message. */
static const tk_opened *tk_open(tk_kernel *kernel) {
  int device = kernel->devices ? tk_current() : 0, code = 0;
  tk_opened *opened;
  if (device >= TK_DEVICES) tk_fail("%s: GPU %d is one too many", kernel->name, device);
  if (device < 0 || device >= TK_DEVICES) return NULL;
  opened = &kernel->opened[device];
  if (__atomic_load_n(&opened->launch, __ATOMIC_ACQUIRE)) return opened;
  if (kernel->devices && (code = tk_code_for(kernel, device)) < 0) return NULL;
  pthread_mutex_lock(&tk_opening);
  if (!opened->launch && tk_load(kernel, &kernel->codes[code], opened)) opened = NULL;
  pthread_mutex_unlock(&tk_opening);
  return opened;
}

static int tk_done(const tk_opened *opened, int status) {
  if (status) tk_fail("%s", opened->error());
  return status;
}
