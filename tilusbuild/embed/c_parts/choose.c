/* Which program serves which sizes: as tilusbuild.runtime.choose decides. What was decided for a
   bucket, or for sizes where costs decide, is kept in a slot, until the next with the same slot takes
   it over. */
static int64_t td_tilus(int64_t size) {
  if (size < 4) return size;
  int shift = 62 - __builtin_clzll((unsigned long long)size);
  int64_t low = ((int64_t)1 << shift) - 1;
  return size > INT64_MAX - low ? size : (size + low) >> shift << shift;
}
static int64_t td_pow2(int64_t size) {
  if (size < 2 || size > (int64_t)1 << 62) return size;
  return (int64_t)1 << (64 - __builtin_clzll((unsigned long long)(size - 1)));
}
static int64_t td_every(int64_t size, int64_t step) {
  if (size < 1 || size > INT64_MAX - step) return size;
  return (size + step - 1) / step * step;
}
static int64_t td_edge(int64_t size, const int64_t *edges, int count) {
  if (size < 1) return size;
  int low = 0, high = count - 1;
  while (low < high) {
    int middle = (low + high) / 2;
    if (edges[middle] < size) low = middle + 1; else high = middle;
  }
  return edges[low];
}
__attribute__((unused)) static int64_t (*const td_roundings[])(int64_t) = {td_tilus, td_pow2};
__attribute__((unused)) static int64_t (*const td_steps)(int64_t, int64_t) = td_every;
__attribute__((unused)) static int64_t (*const td_edges)(int64_t, const int64_t *, int) = td_edge;

static void td_bucket(const int64_t *size, int64_t *bucket);
static int td_rule(const int64_t *size);
static int td_serves(int program, const int64_t *size);
/* `call`: the sizes that a program must serve; NULL: any program will do. */
static int td_fitted(int which, const int64_t *size, const int64_t *call);
static int td_by_model(const int64_t *size, const int64_t *call);

static int64_t td_log(int64_t size) {
  if (size < 1) size = 1;
  int whole = 63 - __builtin_clzll((unsigned long long)size), shift = whole - 16;
  return ((int64_t)whole << 16) + (shift > 0 ? size >> shift : size << -shift) - 65536;
}

static int td_compare(const int64_t *a, const int64_t *b) {
  for (int i = 0; i < TD_KEYS; i++)
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  return 0;
}

/* The entries are sorted by key, so the first of the nearest is the smallest. */
static int td_nearest(const td_table *table, const int64_t *bucket) {
  int best = -1;
  int64_t least = 0;
  for (int i = 0; i < table->count; i++) {
    int64_t distance = 0;
    for (int k = 0; k < TD_KEYS; k++) {
      int64_t d = td_log(bucket[k]) - td_log(table->entries[i].key[k]);
      distance += d < 0 ? -d : d;
    }
    if (best < 0 || distance < least) best = i, least = distance;
  }
  return best;
}

static void (*td_hook)(void);

/* A choice is made in int64_t, so that of a u64 beyond it would be another size's. */
__attribute__((unused)) static int td_beyond(const char *name) {
  return td_fail("%s: argument \"%s\": the choice of a program depends on it, and it is above"
                 " 9223372036854775807", td_name, name);
}

/* The program of an entry, or -2. */
static int td_of_entry(const td_entry *entry, const int64_t *call) {
  if (!call || td_serves(entry->program, call)) return entry->program;
  for (const int32_t *other = entry->others; *other >= 0; other++)
    if (td_serves(*other, call)) return *other;
  return -2;
}

/* The program by the entry of a bucket, else by a fitted cost, else by the nearest entry if the
   bucket has none; or -2. */
static int td_by_table(int which, const int64_t *size, const int64_t *bucket, const int64_t *call,
                       int *source) {
  if (which < 0) return -2;
  const td_table *table = &td_tables[which];
  int low = 0, high = table->count, program = -2;
  while (low < high) {
    int middle = (low + high) / 2;
    if (td_compare(table->entries[middle].key, bucket) < 0) low = middle + 1; else high = middle;
  }
  int measured = low < table->count && !td_compare(table->entries[low].key, bucket);
  *source = TD_MEASURED;
  if (measured && (program = td_of_entry(&table->entries[low], call)) != -2) return program;
  *source = TD_FITTED;
  program = td_fitted(which, size, call);
  if (program != -2 || measured || !table->count) return program;
  *source = TD_NEAREST;
  return td_of_entry(&table->entries[td_nearest(table, bucket)], call);
}

/* The model's program for the sizes of a bucket, or -2. */
static int td_model(const int64_t *size, const int64_t *bucket, const int64_t *call, int *source) {
  int64_t at[TD_SLOTS];
  memcpy(at, size, sizeof at);
  memcpy(at, bucket, TD_KEYS * sizeof *at);
  *source = TD_MODEL;
  return td_by_model(at, call);
}

static int td_decide(int which, const int64_t *size, const int64_t *bucket, int *source) {
  int program = td_by_table(which, size, bucket, NULL, source);
  if (program != -2) {
    void (*hook)(void) = __atomic_load_n(&td_hook, __ATOMIC_ACQUIRE);
    if (hook && *source == TD_NEAREST) hook();
    return program;
  }
  program = td_model(size, bucket, NULL, source);
  if (program != -2) return program;
  *source = TD_DEFAULT;
  return TD_DEFAULT_PROGRAM;
}

/* The program for a call that the bucket's own program does not serve, or -1 with a message. */
static int td_serving(int which, const int64_t *size, const int64_t *bucket, int *source) {
  int program = td_by_table(which, size, bucket, size, source);
  if (program != -2) return program;
  program = td_model(size, bucket, size, source);
  if (program != -2) return program;
  *source = TD_DEFAULT;
  if (TD_SERVING_DEFAULT >= 0 && td_serves(TD_SERVING_DEFAULT, size)) return TD_SERVING_DEFAULT;
  for (program = 0; program < TD_PROGRAMS; program++)
    if (td_programs[program].program && td_serves(program, size)) return program;
  return td_fail("%s has no program that serves these sizes, by its rules of `serves`", td_name);
}

/* Whether a slot has the program of a bucket or of sizes. */
static inline int td_recall(td_kept *slot, int table, const int64_t *key, int *program,
                            int *source) {
  uint32_t version = __atomic_load_n(&slot->version, __ATOMIC_ACQUIRE);
  if (!version || version & 1 || __atomic_load_n(&slot->table, __ATOMIC_RELAXED) != table) return 0;
  for (int i = 0; i < TD_KEYS; i++)
    if (__atomic_load_n(&slot->key[i], __ATOMIC_RELAXED) != key[i]) return 0;
  *program = __atomic_load_n(&slot->program, __ATOMIC_RELAXED);
  *source = __atomic_load_n(&slot->source, __ATOMIC_RELAXED);
  __atomic_thread_fence(__ATOMIC_ACQUIRE);
  return __atomic_load_n(&slot->version, __ATOMIC_RELAXED) == version;
}

/* A slot that another thread is writing is left to it. So is one whose writer a fork cut off. */
static void td_keep(td_kept *slot, int table, const int64_t *key, int program, int source) {
  uint32_t version = __atomic_load_n(&slot->version, __ATOMIC_RELAXED);
  if (version & 1 || !__atomic_compare_exchange_n(&slot->version, &version, version + 1, 0,
                                                  __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
    return;
  __atomic_thread_fence(__ATOMIC_RELEASE);
  __atomic_store_n(&slot->table, table, __ATOMIC_RELAXED);
  for (int i = 0; i < TD_KEYS; i++) __atomic_store_n(&slot->key[i], key[i], __ATOMIC_RELAXED);
  __atomic_store_n(&slot->program, program, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->source, source, __ATOMIC_RELAXED);
  __atomic_store_n(&slot->version, version + 2 ? version + 2 : 2, __ATOMIC_RELEASE);
}

/* The program's number, or -1 with a message. */
static inline int td_choose(int table, const int64_t *size, int *source) {
  int64_t bucket[TD_WIDTH] = {0};
  uint64_t hash = (uint64_t)table;
  int program = td_rule(size);
  if (program != -2) {
    *source = TD_TABLE;
    return program;
  }
  td_bucket(size, bucket);
  /* Costs are of exact sizes. */
  const int64_t *key = TD_COSTS ? size : bucket;
  for (int i = 0; i < TD_KEYS; i++) hash = (hash ^ (uint64_t)key[i]) * 0x9E3779B97F4A7C15u;
  td_kept *slot = &td_slots[hash >> 54];
  if (!td_recall(slot, table, key, &program, source)) {
    program = td_decide(table, size, bucket, source);
    if (program >= 0) td_keep(slot, table, key, program, *source);
  }
  /* Not kept: it depends on more than the keys. */
  if (program >= 0 && !td_serves(program, size)) return td_serving(table, size, bucket, source);
  return program;
}
