// A seam under CPython that fails when told to: preloaded (LD_PRELOAD), it counts the calls that a
// process makes below some directories and makes the N-th fail with an errno, or kills the process
// there.
//
// Everything is told and counted in one page that is shared with the test ($FAULTS_PAGE, struct
// Page; `injector.py` knows the same layout). A process takes part only after `faults_join`, so
// that a fork server can be preloaded and stay unharmed; $FAULTS_JOIN=1 joins at the start.
//
// Calls with a path, or a descriptor of one, count when the path lies below a root of the page. The
// path of a descriptor is asked of /proc when it is used: no table of ours can be wrong about dup,
// fork or close. Calls that have no path (threads, processes, sockets) always count. glibc's own
// inner calls do not come this way: fopen's, opendir's and dlopen's opens; opendir itself does.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum Kind {
  OPEN = 1, WRITE, RENAME, LINK, SYMLINK, UNLINK, MKDIR, RMDIR, TRUNCATE, SYNC, CHMOD, UTIME, COPY,
  LOCK,
  LOOK = 16, OPENDIR, READDIR, READ, STAT, MAP,
  THREAD = 24, SPAWN, SEND, SOCKET, PIPE, POLL,
};

#define LOGGED 65536
#define ROOTS 4

struct Page {
  uint64_t kinds;            // a bit for each kind that counts
  uint64_t failing;          // a bit for each kind that can fail with the error
  uint32_t at;               // the call that fails, from 1; 0: none
  uint32_t forever;          // and every one after it
  int32_t error;             // an errno, or 0
  int32_t signal;            // or a signal for the process
  int64_t ahead;             // nanoseconds by which our clock is; the times of files are right
  uint32_t half;             // a write does half of its work first
  uint32_t count;            // calls that counted so far
  uint32_t fired;            // how often a call failed
  uint32_t first;            // the kind of the first that did
  char path[512];            // and its path
  char roots[ROOTS][512];    // "" is none; each ends with a slash
  uint8_t log[LOGGED];       // the kind of each call that counted
};

static struct Page *page;
static volatile int joined;

__attribute__((constructor)) static void attach(void) {
  const char *name = getenv("FAULTS_PAGE");
  if (!name) return;
  int handle = syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC);
  if (handle < 0) return;
  void *found = (void *)syscall(SYS_mmap, NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED,
                                handle, 0);
  syscall(SYS_close, handle);
  if (found != MAP_FAILED) page = found;
  const char *now = getenv("FAULTS_JOIN");
  joined = now && *now == '1';
}

__attribute__((visibility("default"))) void faults_join(void) { joined = 1; }

static int is_below(const char *path) {
  for (int i = 0; i < ROOTS && page->roots[i][0]; ++i) {
    size_t length = strlen(page->roots[i]);
    if (strncmp(path, page->roots[i], length) == 0) return 1;
    if (strncmp(path, page->roots[i], length - 1) == 0 && !path[length - 1]) return 1;
  }
  return 0;
}

static void path_of(int handle, char *out) {
  char link[40] = "/proc/self/fd/";
  char digits[12];
  int n = 0;
  for (unsigned rest = handle; n == 0 || rest; rest /= 10) digits[n++] = '0' + rest % 10;
  for (size_t at = strlen(link); n; link[at] = 0) link[at++] = digits[--n];
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_MAX - 1);
  out[length > 0 ? length : 0] = 0;
}

static void path_at(int directory, const char *path, char *out) {
  out[0] = 0;
  if (path && path[0] != '/') {
    if (directory == AT_FDCWD) {
      if (syscall(SYS_getcwd, out, PATH_MAX) < 0) out[0] = 0;
    } else {
      path_of(directory, out);
    }
    strncat(out, "/", PATH_MAX - 1 - strlen(out));
  }
  if (path) strncat(out, path, PATH_MAX - 1 - strlen(out));
}

// Whether this call is to fail; 2 means after half of the work. errno is set.
static int due(enum Kind kind, const char *path) {
  if (kind < THREAD && !is_below(path)) return 0;
  uint32_t number = __atomic_add_fetch(&page->count, 1, __ATOMIC_SEQ_CST);
  if (number <= LOGGED) page->log[number - 1] = kind;
  uint32_t at = __atomic_load_n(&page->at, __ATOMIC_SEQ_CST);
  if (!at || (page->forever ? number < at : number != at)) return 0;
  if (!(page->failing >> kind & 1)) return 0;
  if (__atomic_fetch_add(&page->fired, 1, __ATOMIC_SEQ_CST) == 0) {
    page->first = kind;
    strncpy(page->path, path, sizeof page->path - 1);
    if (page->half && kind == WRITE) return 2;
  }
  if (page->signal) syscall(SYS_kill, getpid(), page->signal);
  errno = page->error;
  return 1;
}

static int counts(enum Kind kind) { return joined && page && page->kinds >> kind & 1; }

static int due_path(enum Kind kind, int directory, const char *path) {
  if (!counts(kind)) return 0;
  char whole[PATH_MAX];
  path_at(directory, path, whole);
  return due(kind, whole);
}

static int due_handle(enum Kind kind, int handle) {
  if (!counts(kind)) return 0;
  char whole[PATH_MAX];
  path_of(handle, whole);
  return due(kind, whole);
}

static int due_any(enum Kind kind) { return counts(kind) && due(kind, ""); }

#define EXPORT __attribute__((visibility("default")))
#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

// A call `name` under its names: the test that it must pass, and the call that is made then.
#define CALL(type, name, failed, test, declared, passed) \
  EXPORT type name declared { \
    REAL(name); \
    if (test) return failed; \
    return real passed; \
  }

static enum Kind opening(int flags) {
  return flags & (O_CREAT | O_TRUNC | O_WRONLY | O_RDWR) ? OPEN
         : flags & O_DIRECTORY                           ? OPENDIR
                                                         : LOOK;
}

#define MODE_OF(flags, last) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | __O_TMPFILE)) { \
    va_list rest; \
    va_start(rest, last); \
    mode = va_arg(rest, mode_t); \
    va_end(rest); \
  }

#define OPENS(name) \
  EXPORT int name(const char *path, int flags, ...) { \
    MODE_OF(flags, flags) \
    REAL(name); \
    if (due_path(opening(flags), AT_FDCWD, path)) return -1; \
    return real(path, flags, mode); \
  }
#define OPENS_AT(name) \
  EXPORT int name(int directory, const char *path, int flags, ...) { \
    MODE_OF(flags, flags) \
    REAL(name); \
    if (due_path(opening(flags), directory, path)) return -1; \
    return real(directory, path, flags, mode); \
  }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

#define HALF(call) \
  int when = due_handle(WRITE, handle); \
  if (when == 2) { \
    ssize_t done = size > 1 ? (call) : 0; \
    if (page->signal) syscall(SYS_kill, getpid(), page->signal); \
    page->at = page->count + 1; \
    if (done > 0) return done; \
    errno = page->error; \
  } \
  if (when) return -1;

EXPORT ssize_t write(int handle, const void *data, size_t size) {
  REAL(write);
  HALF(real(handle, data, size / 2))
  return real(handle, data, size);
}
EXPORT ssize_t pwrite64(int handle, const void *data, size_t size, off64_t at) {
  REAL(pwrite64);
  HALF(real(handle, data, size / 2, at))
  return real(handle, data, size, at);
}
CALL(ssize_t, pwrite, -1, due_handle(WRITE, handle),
     (int handle, const void *data, size_t size, off_t at), (handle, data, size, at))
CALL(ssize_t, writev, -1, due_handle(WRITE, handle),
     (int handle, const struct iovec *parts, int count), (handle, parts, count))

CALL(int, rename, -1, due_path(RENAME, AT_FDCWD, to), (const char *from, const char *to),
     (from, to))
CALL(int, renameat, -1, due_path(RENAME, b, to), (int a, const char *from, int b, const char *to),
     (a, from, b, to))
CALL(int, renameat2, -1, due_path(RENAME, b, to),
     (int a, const char *from, int b, const char *to, unsigned how), (a, from, b, to, how))
CALL(int, link, -1, due_path(LINK, AT_FDCWD, to), (const char *from, const char *to), (from, to))
CALL(int, linkat, -1, due_path(LINK, b, to),
     (int a, const char *from, int b, const char *to, int how), (a, from, b, to, how))
CALL(int, symlink, -1, due_path(SYMLINK, AT_FDCWD, to), (const char *from, const char *to),
     (from, to))
CALL(int, symlinkat, -1, due_path(SYMLINK, b, to), (const char *from, int b, const char *to),
     (from, b, to))
CALL(int, unlink, -1, due_path(UNLINK, AT_FDCWD, path), (const char *path), (path))
CALL(int, unlinkat, -1, due_path(how & AT_REMOVEDIR ? RMDIR : UNLINK, a, path),
     (int a, const char *path, int how), (a, path, how))
CALL(int, mkdir, -1, due_path(MKDIR, AT_FDCWD, path), (const char *path, mode_t mode), (path, mode))
CALL(int, mkdirat, -1, due_path(MKDIR, a, path), (int a, const char *path, mode_t mode),
     (a, path, mode))
CALL(int, rmdir, -1, due_path(RMDIR, AT_FDCWD, path), (const char *path), (path))
CALL(int, truncate64, -1, due_path(TRUNCATE, AT_FDCWD, path), (const char *path, off64_t size),
     (path, size))
CALL(int, ftruncate64, -1, due_handle(TRUNCATE, handle), (int handle, off64_t size), (handle, size))
CALL(int, ftruncate, -1, due_handle(TRUNCATE, handle), (int handle, off_t size), (handle, size))
CALL(int, posix_fallocate64, errno, due_handle(TRUNCATE, handle),
     (int handle, off64_t at, off64_t size), (handle, at, size))
CALL(int, fsync, -1, due_handle(SYNC, handle), (int handle), (handle))
CALL(int, fdatasync, -1, due_handle(SYNC, handle), (int handle), (handle))
CALL(int, syncfs, -1, due_handle(SYNC, handle), (int handle), (handle))
CALL(int, chmod, -1, due_path(CHMOD, AT_FDCWD, path), (const char *path, mode_t mode), (path, mode))
CALL(int, fchmod, -1, due_handle(CHMOD, handle), (int handle, mode_t mode), (handle, mode))
CALL(int, fchmodat, -1, due_path(CHMOD, a, path), (int a, const char *path, mode_t mode, int how),
     (a, path, mode, how))
CALL(int, utimensat, -1, due_path(UTIME, a, path),
     (int a, const char *path, const struct timespec times[2], int how), (a, path, times, how))
CALL(int, futimens, -1, due_handle(UTIME, handle), (int handle, const struct timespec times[2]),
     (handle, times))
CALL(ssize_t, sendfile64, -1, due_handle(COPY, to), (int to, int from, off64_t *at, size_t size),
     (to, from, at, size))
CALL(ssize_t, sendfile, -1, due_handle(COPY, to), (int to, int from, off_t *at, size_t size),
     (to, from, at, size))
CALL(ssize_t, copy_file_range, -1, due_handle(COPY, to),
     (int from, off64_t *a, int to, off64_t *b, size_t size, unsigned how),
     (from, a, to, b, size, how))

CALL(int, flock, -1, due_handle(LOCK, handle), (int handle, int how), (handle, how))
static int is_locking(int command) {
  return command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK ||
         command == F_OFD_SETLKW || command == F_OFD_GETLK || command == F_GETLK;
}
#define CONTROLS(name) \
  EXPORT int name(int handle, int command, ...) { \
    va_list rest; \
    va_start(rest, command); \
    void *value = va_arg(rest, void *); \
    va_end(rest); \
    REAL(name); \
    if (is_locking(command) && due_handle(LOCK, handle)) return -1; \
    return real(handle, command, value); \
  }
CONTROLS(fcntl)
CONTROLS(fcntl64)

CALL(DIR *, opendir, NULL, due_path(OPENDIR, AT_FDCWD, path), (const char *path), (path))
CALL(DIR *, fdopendir, NULL, due_handle(OPENDIR, handle), (int handle), (handle))
CALL(struct dirent *, readdir, NULL, due_handle(READDIR, dirfd(list)), (DIR *list), (list))
CALL(struct dirent64 *, readdir64, NULL, due_handle(READDIR, dirfd(list)), (DIR *list), (list))
CALL(ssize_t, read, -1, due_handle(READ, handle), (int handle, void *data, size_t size),
     (handle, data, size))
CALL(ssize_t, pread64, -1, due_handle(READ, handle),
     (int handle, void *data, size_t size, off64_t at), (handle, data, size, at))
CALL(int, stat64, -1, due_path(STAT, AT_FDCWD, path), (const char *path, struct stat64 *found),
     (path, found))
CALL(int, stat, -1, due_path(STAT, AT_FDCWD, path), (const char *path, struct stat *found),
     (path, found))
CALL(int, lstat64, -1, due_path(STAT, AT_FDCWD, path), (const char *path, struct stat64 *found),
     (path, found))
CALL(int, lstat, -1, due_path(STAT, AT_FDCWD, path), (const char *path, struct stat *found),
     (path, found))
CALL(int, fstatat64, -1, due_path(STAT, a, path),
     (int a, const char *path, struct stat64 *found, int how), (a, path, found, how))
CALL(int, fstatat, -1, due_path(STAT, a, path),
     (int a, const char *path, struct stat *found, int how), (a, path, found, how))
CALL(int, fstat64, -1, due_handle(STAT, handle), (int handle, struct stat64 *found),
     (handle, found))
CALL(int, fstat, -1, due_handle(STAT, handle), (int handle, struct stat *found), (handle, found))
CALL(void *, mmap64, MAP_FAILED, handle >= 0 && due_handle(MAP, handle),
     (void *where, size_t size, int how, int flags, int handle, off64_t at),
     (where, size, how, flags, handle, at))

// The clock, and what calls ask of it: glibc's own calls do not come this way.
static int64_t ahead(void) { return joined && page ? page->ahead : 0; }
static int64_t now(void) {
  struct timespec found;
  syscall(SYS_clock_gettime, CLOCK_REALTIME, &found);
  return found.tv_sec * 1000000000ll + found.tv_nsec + ahead();
}
EXPORT int clock_gettime(clockid_t clock, struct timespec *found) {
  static int (*real)(clockid_t, struct timespec *);
  if (clock != CLOCK_REALTIME || !ahead()) {
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "clock_gettime");
    return real(clock, found);
  }
  int64_t time = now();
  *found = (struct timespec){time / 1000000000, time % 1000000000};
  return 0;
}
EXPORT int gettimeofday(struct timeval *found, void *zone) {
  (void)zone;
  *found = (struct timeval){now() / 1000000000, now() % 1000000000 / 1000};
  return 0;
}
EXPORT time_t time(time_t *found) {
  time_t seconds = now() / 1000000000;
  if (found) *found = seconds;
  return seconds;
}

CALL(int, pthread_create, page->error, due_any(THREAD),
     (pthread_t * thread, const pthread_attr_t *how, void *(*run)(void *), void *value),
     (thread, how, run, value))
CALL(int, posix_spawn, page->error, due_any(SPAWN),
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
      const posix_spawnattr_t *how, char *const words[], char *const variables[]),
     (pid, path, actions, how, words, variables))
CALL(pid_t, fork, -1, due_any(SPAWN), (void), ())
CALL(ssize_t, send, -1, due_any(SEND), (int handle, const void *data, size_t size, int how),
     (handle, data, size, how))
CALL(ssize_t, sendmsg, -1, due_any(SEND), (int handle, const struct msghdr *message, int how),
     (handle, message, how))
CALL(int, socketpair, -1, due_any(SOCKET), (int domain, int type, int protocol, int ends[2]),
     (domain, type, protocol, ends))
CALL(int, pipe2, -1, due_any(PIPE), (int ends[2], int how), (ends, how))
CALL(int, poll, -1, due_any(POLL), (struct pollfd * ends, nfds_t count, int time),
     (ends, count, time))
