/* What every launcher does before it launches: read the arguments, check them, raise what is wrong. */
/* A call in progress, in the declared order of the arguments. */
typedef struct {
  tl_value value[TL_ARGUMENTS + 1];
  int64_t number[TL_ARGUMENTS + 1];           /* integer arguments, for expressions */
  const tl_tensor *tensor[TL_ARGUMENTS + 1];
  int16_t bound_by[TL_ARGUMENTS + 1];         /* which tensor gave a dimension; -1: none yet */
  int16_t bound_axis[TL_ARGUMENTS + 1];
  int32_t device;                             /* the tensors' device; -1: no tensor says */
  int device_said_by;
} tl_call;

static int tl_dimension(int which, const int64_t *number, int64_t *result);
static int tl_start(tl_call *call, void *stream, int stream_given);
#ifdef TL_CUDA
static int tl_find_driver(void);
#endif

static __thread char tl_message[2048];
static __thread const char *tl_error_kind;

static int tl_fail(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int tl_fail(const char *kind, const char *format, ...) {
  va_list rest;
  int used = snprintf(tl_message, sizeof tl_message, "%s: ", tl_name);
  if (used < 0 || (size_t)used >= sizeof tl_message) used = 0;
  va_start(rest, format);
  vsnprintf(tl_message + used, sizeof tl_message - (size_t)used, format, rest);
  va_end(rest);
  tl_error_kind = kind;
  return -1;
}

TL_EXPORT const char *launch_error(void) { return tl_message; }

/* Text for messages, cut when it is too long. */
typedef struct { char text[512]; size_t used; } tl_text;
static void tl_add(tl_text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void tl_add(tl_text *to, const char *format, ...) {
  va_list rest;
  va_start(rest, format);
  int more = vsnprintf(to->text + to->used, sizeof to->text - to->used, format, rest);
  va_end(rest);
  if (more > 0) to->used += (size_t)more;
  if (to->used >= sizeof to->text) to->used = sizeof to->text - 1;
}

static void tl_add_tuple(tl_text *to, const int64_t *numbers, int count) {
  tl_add(to, "(");
  for (int i = 0; i < count; i++) tl_add(to, i ? ", %lld" : "%lld", (long long)numbers[i]);
  tl_add(to, count == 1 ? ",)" : ")");
}

static void tl_add_dtype(tl_text *to, tl_dtype dtype) {
  if (dtype.code == TL_CODE_BOOL && dtype.bits == 8) tl_add(to, "bool");
  else if (dtype.code == TL_CODE_INT) tl_add(to, "i%d", dtype.bits);
  else if (dtype.code == TL_CODE_UINT) tl_add(to, "u%d", dtype.bits);
  else if (dtype.code == TL_CODE_FLOAT) tl_add(to, "f%d", dtype.bits);
  else if (dtype.code == TL_CODE_BFLOAT) tl_add(to, "bf%d", dtype.bits);
  else if (dtype.code == 10) tl_add(to, "f8e4m3");
  else if (dtype.code == 12) tl_add(to, "f8e5m2");
#ifdef TL_NEW_FLOATS
  else if (dtype.code == 14) tl_add(to, "f8e8m0");
  else if (dtype.code == 17) tl_add(to, "f4e2m1");
#endif
  else tl_add(to, "(DLPack type %d of %d bits)", dtype.code, dtype.bits);
  if (dtype.lanes != 1) tl_add(to, "x%d", dtype.lanes);
}

static void tl_add_device(tl_text *to, tl_device device) {
  switch (device.kind) {
    case TL_ON_CPU: tl_add(to, "cpu"); break;
    case TL_ON_CUDA: tl_add(to, "cuda:%d", device.index); break;
    case TL_ON_CUDA_HOST: tl_add(to, "pinned cpu memory"); break;
    case TL_ON_CUDA_MANAGED: tl_add(to, "managed cuda memory"); break;
    default: tl_add(to, "device kind %d", device.kind);
  }
}

static void tl_add_tensor(tl_text *to, const tl_tensor *tensor) {
  tl_add_dtype(to, tensor->dtype);
  tl_add(to, " tensor of shape ");
  tl_add_tuple(to, tensor->shape, tensor->rank);
  tl_add(to, " on ");
  tl_add_device(to, tensor->device);
}

static const tl_tensor *tl_tensor_of(const tl_any *any) {
  if (any->kind == TL_TENSOR_POINTER) return (const tl_tensor *)any->as.pointer;
  if (any->kind == TL_TENSOR) return (const tl_tensor *)((const char *)any->as.pointer + TL_OBJECT_HEAD);
  return NULL;
}

static void tl_add_any(tl_text *to, const tl_any *any) {
  const tl_tensor *tensor = tl_tensor_of(any);
  if (tensor) { tl_add_tensor(to, tensor); return; }
  switch (any->kind) {
    case TL_NONE: tl_add(to, "None"); break;
    case TL_INT: tl_add(to, "int %lld", (long long)any->as.integer); break;
    case TL_BIG_INT: tl_add(to, "an int of more than 64 bits"); break;
    case TL_BOOL: tl_add(to, any->as.integer ? "True" : "False"); break;
    case TL_FLOAT: tl_add(to, "float %g", any->as.real); break;
    case TL_DTYPE: tl_add(to, "a dtype"); break;
    case TL_DEVICE: tl_add(to, "a device"); break;
    case TL_RAW_STR: case TL_SMALL_STR: case TL_STR: tl_add(to, "str"); break;
    case TL_SMALL_BYTES: case TL_BYTES: tl_add(to, "bytes"); break;
    case TL_FUNCTION: tl_add(to, "a function"); break;
    case TL_SHAPE: tl_add(to, "a shape"); break;
    case TL_ARRAY: case TL_LIST: tl_add(to, "a list"); break;
    case TL_MAP: case TL_DICT: tl_add(to, "a dict"); break;
    case TL_PYTHON: tl_add(to, "a Python object that is no tensor"); break;
    default: tl_add(to, "an object of tvm-ffi type %d", any->kind);
  }
}

/* `argument "b" (2nd)`: where an argument stands among those that a caller passes. */
static void tl_add_argument(tl_text *to, int index) {
  static const char *const endings[] = {"th", "st", "nd", "rd"};
  int position = 0;
  for (int i = 0; i <= index; i++) position += tl_arguments[i].passed;
  int last = position % 10, teen = position % 100 / 10 == 1;
  tl_add(to, "argument \"%s\" (%d%s)", tl_arguments[index].name, position,
         endings[!teen && last < 4 ? last : 0]);
}

static int tl_wrong_tensor(const tl_call *call, const char *kind, int index, const char *but) {
  tl_text where = {.used = 0}, with = {.used = 0}, got = {.used = 0};
  const tl_argument *argument = &tl_arguments[index];
  tl_add_argument(&where, index);
  for (int axis = 0; axis < argument->rank; axis++) {
    const tl_dim *dim = &tl_dims[argument->first_dim + axis];
    if (dim->kind != TL_DIM_ARGUMENT || call->bound_by[dim->value] < 0) continue;
    if (call->bound_by[dim->value] == index) continue;
    tl_add(&with, "%s%s = %lld (from \"%s\")", with.used ? ", " : " with ", dim->text,
           (long long)call->number[dim->value], tl_arguments[call->bound_by[dim->value]].name);
  }
  tl_add_tensor(&got, call->tensor[index]);
  return tl_fail(kind, "%s: expected %s%s, got %s%s", where.text, argument->type, with.text,
                 got.text, but);
}
