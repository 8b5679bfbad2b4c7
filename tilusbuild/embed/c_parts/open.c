/* Programs are found relative to this library, checked against the digest that was built, and opened
   when they are first chosen. Devices are asked for their names once. */
typedef int (*td_packed)(void *, const void *, int32_t, void *);
typedef struct { td_packed packed; void *plain, *workspace; const char *(*error)(void); } td_functions;

static td_functions *td_opened[TD_PROGRAMS];
static pthread_mutex_t td_opening = PTHREAD_MUTEX_INITIALIZER;
static const char td_here;

/* A child of a fork must not wait for a thread that only its parent has. */
static void td_after_fork(void) { pthread_mutex_init(&td_opening, NULL); }
__attribute__((constructor)) static void td_at_load(void) { pthread_atfork(NULL, NULL, td_after_fork); }

static int td_path(int program, char *path, size_t size) {
  Dl_info info;
  if (!dladdr(&td_here, &info) || !info.dli_fname) return td_fail("%s: cannot find itself", td_name);
  const char *slash = strrchr(info.dli_fname, '/');
  int length = slash ? (int)(slash - info.dli_fname) : 1;
  int used = snprintf(path, size, "%.*s/../../../../programs/%s/module/lib.so", length,
                      slash ? info.dli_fname : ".", td_programs[program].program);
  return used < (int)size ? 0 : td_fail("%s: path too long", td_name);
}

static td_functions *td_load(int program) {
  char path[4096], digest[65];
  static td_functions functions[TD_PROGRAMS];
  td_functions *made = &functions[program];
  if (td_path(program, path, sizeof path)) return NULL;
  if (td_sha256(path, digest)) { td_fail("%s: %s cannot be read", td_name, path); return NULL; }
  if (strcmp(digest, td_programs[program].sha256)) {
    td_fail("%s: %s is not what was built: sha256 %s, expected %s", td_name, path, digest,
            td_programs[program].sha256);
    return NULL;
  }
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) { td_fail("%s: %s", td_name, dlerror()); return NULL; }
  *(void **)&made->packed = dlsym(library, "__tvm_ffi_launch");
  made->plain = dlsym(library, "launch");
  made->workspace = dlsym(library, "workspace");
  *(void **)&made->error = dlsym(library, "launch_error");
  if (made->packed && made->plain && made->error) return made;
  td_fail("%s: %s does not export what it should", td_name, path);
  return NULL;
}

static td_functions *td_open(int program) {
  td_functions *found = __atomic_load_n(&td_opened[program], __ATOMIC_ACQUIRE);
  if (found) return found;
  pthread_mutex_lock(&td_opening);
  found = td_opened[program];
  if (!found && (found = td_load(program)))
    __atomic_store_n(&td_opened[program], found, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&td_opening);
  return found;
}

static int td_matches(const char *device, const char *arch) {
  for (int i = 0; i < TD_TABLES; i++) {
    const td_table *table = &td_tables[i];
    if ((!strcmp(table->device, "*") || !strcmp(table->device, device)) &&
        (!strcmp(table->arch, "*") || !strcmp(table->arch, arch)))
      return i;
  }
  return -1;
}

#ifdef TD_CUDA
/* The driver is looked for once: without one, every search would cost what opening a file does. */
static struct {
  int (*init)(unsigned), (*get)(int *, int), (*name)(char *, int, int), (*of)(int *, int, int);
  int (*current)(int *);
} td_cuda;
static pthread_once_t td_cuda_once = PTHREAD_ONCE_INIT;

static void td_find_cuda(void) {
  void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (!driver) return;
  *(void **)&td_cuda.init = dlsym(driver, "cuInit");
  *(void **)&td_cuda.get = dlsym(driver, "cuDeviceGet");
  *(void **)&td_cuda.name = dlsym(driver, "cuDeviceGetName");
  *(void **)&td_cuda.of = dlsym(driver, "cuDeviceGetAttribute");
  *(void **)&td_cuda.current = dlsym(driver, "cuCtxGetDevice");
}

static int td_ask(int ordinal) {
  char device[256] = "", arch[32];
  int handle, major = 0, minor = 0;
  pthread_once(&td_cuda_once, td_find_cuda);
  if (!td_cuda.init || !td_cuda.get || !td_cuda.name || !td_cuda.of) return -1;
  if (td_cuda.init(0) || td_cuda.get(&handle, ordinal)) return -1;
  if (td_cuda.name(device, sizeof device, handle)) return -1;
  if (td_cuda.of(&major, 75, handle) || td_cuda.of(&minor, 76, handle)) return -1;
  snprintf(arch, sizeof arch, "sm_%d", major * 10 + minor);
  return td_matches(device, arch);
}

static int td_current_device(void) {
  int device = 0;
  if (!TD_TABLES) return 0;
  pthread_once(&td_cuda_once, td_find_cuda);
  return td_cuda.current && !td_cuda.current(&device) ? device : 0;
}
#else
static int td_ask(int ordinal) {
  char line[512], device[256] = TD_MACHINE " cpu";
  FILE *file = fopen("/proc/cpuinfo", "re");
  (void)ordinal;
  while (file && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (!colon || strncmp(line, "model name", 10)) continue;
    colon += strspn(colon + 1, " \t") + 1;
    colon[strcspn(colon, "\n")] = 0;
    snprintf(device, sizeof device, "%.255s", colon);
    break;
  }
  if (file) fclose(file);
  return td_matches(device, "cpu");
}

static int td_current_device(void) { return 0; }
#endif

/* Which table holds on a device; -1 for none. 0 in the memory is "not asked yet". */
static int td_table_of(int ordinal) {
  enum { KEPT = 64 };
  static int known[KEPT];
  if (!TD_TABLES) return -1;
  if (ordinal < 0 || ordinal >= KEPT) return td_ask(ordinal);
  int found = __atomic_load_n(&known[ordinal], __ATOMIC_RELAXED);
  if (!found) {
    found = td_ask(ordinal) + 2;
    __atomic_store_n(&known[ordinal], found, __ATOMIC_RELAXED);
  }
  return found - 2;
}
