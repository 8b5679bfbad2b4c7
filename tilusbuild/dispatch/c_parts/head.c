/* Included by the generated dispatch.c after its sizes: what the tables are made of. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TD_EXPORT __attribute__((visibility("default")))
#define TD_SLOTS (TD_SIZES ? TD_SIZES : 1)
#define TD_WIDTH (TD_KEYS ? TD_KEYS : 1)

enum { TD_TABLE, TD_MEASURED, TD_NEAREST, TD_MODEL, TD_DEFAULT };
static const char *const td_sources[] = {"table", "measured", "nearest", "model", "default"};

typedef struct { const char *program, *sha256; } td_program;          /* NULL: not built */
typedef struct { int64_t key[TD_WIDTH]; int32_t program, source; } td_entry;
typedef struct { const char *device, *arch; const td_entry *entries; int count; } td_table;
typedef struct { int argument, axis; } td_read;                       /* axis -1: a scalar */

/* What a thread keeps: the programs of buckets that it has met, and what went wrong last. Only the
   pointer is thread-local storage, and of the quick kind, of which a process has little. */
enum { TD_KEPT = 1024 };
typedef struct { int64_t key[TD_WIDTH]; int32_t table, program, source, used; } td_kept;
typedef struct { td_kept kept[TD_KEPT]; const void *last; char message[1024]; } td_thread;

static __thread td_thread *td_own __attribute__((tls_model("initial-exec")));
static td_thread td_spare; /* for threads that get no memory: their messages may be mixed up */
static pthread_key_t td_key;
static pthread_once_t td_once = PTHREAD_ONCE_INIT;
static void td_make_key(void) { pthread_key_create(&td_key, free); }

static __attribute__((noinline)) td_thread *td_begin(void) {
  pthread_once(&td_once, td_make_key);
  td_own = calloc(1, sizeof *td_own);
  if (td_own) pthread_setspecific(td_key, td_own);
  return td_own ? td_own : &td_spare;
}

static inline td_thread *td_mine(void) { return td_own ? td_own : td_begin(); }

static int td_fail(const char *format, ...) {
  td_thread *mine = td_mine();
  va_list list;
  va_start(list, format);
  vsnprintf(mine->message, sizeof mine->message, format, list);
  va_end(list);
  return -1;
}
