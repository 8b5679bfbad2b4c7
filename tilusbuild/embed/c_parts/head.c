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

enum { TD_TABLE, TD_MEASURED, TD_FITTED, TD_NEAREST, TD_MODEL, TD_DEFAULT };
static const char *const td_sources[] = {"table", "measured", "fitted", "nearest", "model", "default"};

typedef struct { const char *program, *sha256; } td_program;          /* NULL: not built */
typedef struct { int64_t key[TD_WIDTH]; int32_t program; const int32_t *others; } td_entry; /* others: end with -1 */
typedef struct { const char *device, *arch; const td_entry *entries; int count; } td_table;
typedef struct { int argument, axis; const char *u64; } td_read;      /* axis -1: a scalar, -2: the alignment; u64: its name */

/* The programs of buckets that were met, for all threads. A slot is read without a lock: it counts if
   its version is even and the same before and after. 0: never written. */
enum { TD_KEPT = 1024 };
typedef struct { uint32_t version; int32_t table, program, source; int64_t key[TD_WIDTH]; } td_kept;
static td_kept td_slots[TD_KEPT];

/* What went wrong last is each thread's own. It must stay dynamic thread-local storage, which is made
   when it is first touched: of the static kind a process has some 1,600 bytes for all the libraries
   that it opens later, and the 200th could not be loaded. */
static __thread char td_message[1024];
static __thread const void *td_last;

static int td_fail(const char *format, ...) {
  va_list list;
  va_start(list, format);
  vsnprintf(td_message, sizeof td_message, format, list);
  va_end(list);
  return -1;
}
