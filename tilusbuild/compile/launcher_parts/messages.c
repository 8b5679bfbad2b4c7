/* A call in progress, and what is said of one that is wrong: a message is written piece by piece into
   the thread's own buffer. */

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

#ifdef TL_EXPRESSIONS
static int tl_dimension(int which, const int64_t *number, int64_t *result);
#endif
static int tl_start(tl_call *call, void *stream, int stream_given);
#ifdef TL_CUDA
static int tl_find_driver(void);
#endif

static __thread struct { const char *kind; size_t used; char text[2048]; } tl_error;

/* What writes messages is out of the way of calls that are right. */
#define TL_COLD __attribute__((cold, noinline))

TL_EXPORT const char *launch_error(void) { return tl_error.text; }

/* Adds to the message, which is cut when it is too long. Returns -1, as a check that failed does. */
TL_COLD static int tl_add(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int tl_add(const char *format, ...) {
  size_t room = sizeof tl_error.text - tl_error.used;
  va_list rest;
  va_start(rest, format);
  int more = vsnprintf(tl_error.text + tl_error.used, room, format, rest);
  va_end(rest);
  if (more > 0) tl_error.used += (size_t)more < room ? (size_t)more : room - 1;
  return -1;
}

/* Begins the message of an exception of this kind. */
TL_COLD static void tl_begin_message(const char *kind) {
  tl_error.kind = kind;
  tl_error.used = 0;
  if (sizeof tl_name + 2 < sizeof tl_error.text) tl_add("%s: ", tl_name);
}

#define tl_fail(kind, ...) (tl_begin_message(kind), tl_add(__VA_ARGS__))

static const char *tl_name_of(int index) { return tl_strings + tl_arguments[index].name; }

static void tl_add_tuple(const int64_t *numbers, int count) {
  tl_add("(");
  for (int i = 0; i < count; i++) tl_add(i ? ", %lld" : "%lld", (long long)numbers[i]);
  tl_add(count == 1 ? ",)" : ")");
}

static const char *tl_dtype_format(tl_dtype dtype) {
  switch (dtype.code) {
    case TL_CODE_INT: return "i%d";
    case TL_CODE_UINT: return "u%d";
    case TL_CODE_FLOAT: return "f%d";
    case TL_CODE_BFLOAT: return "bf%d";
    case TL_CODE_BOOL: if (dtype.bits == 8) return "bool"; break;
    case 10: return "f8e4m3";
    case 12: return "f8e5m2";
#ifdef TL_NEW_FLOATS
    case 14: return "f8e8m0";
    case 17: return "f4e2m1";
#endif
  }
  return "(DLPack type %2$d of %1$d bits)";
}

static const char *tl_device_format(tl_device device) {
  switch (device.kind) {
    case TL_ON_CPU: return "cpu";
    case TL_ON_CUDA: return "cuda:%d";
    case TL_ON_CUDA_HOST: return "pinned cpu memory";
    case TL_ON_CUDA_MANAGED: return "managed cuda memory";
  }
  return "device kind %d";
}

TL_COLD static void tl_add_tensor(const tl_tensor *tensor) {
  const tl_device device = tensor->device;
  tl_add(tl_dtype_format(tensor->dtype), tensor->dtype.bits, tensor->dtype.code);
  if (tensor->dtype.lanes != 1) tl_add("x%d", tensor->dtype.lanes);
  tl_add(" tensor of shape ");
  tl_add_tuple(tensor->shape, tensor->rank);
  tl_add(" on ");
  tl_add(tl_device_format(device), device.kind == TL_ON_CUDA ? device.index : device.kind);
}

static const tl_tensor *tl_tensor_of(const tl_any *any) {
  if (any->kind == TL_TENSOR_POINTER) return (const tl_tensor *)any->as.pointer;
  if (any->kind == TL_TENSOR) return (const tl_tensor *)((const char *)any->as.pointer + TL_OBJECT_HEAD);
  return NULL;
}

static const char *tl_format_of(const tl_any *any) {
  switch (any->kind) {
    case TL_NONE: return "None";
    case TL_BIG_INT: return "an int of more than 64 bits";
    case TL_BOOL: return any->as.integer ? "True" : "False";
    case TL_DTYPE: return "a dtype";
    case TL_DEVICE: return "a device";
    case TL_RAW_STR: case TL_SMALL_STR: case TL_STR: return "str";
    case TL_SMALL_BYTES: case TL_BYTES: return "bytes";
    case TL_FUNCTION: return "a function";
    case TL_SHAPE: return "a shape";
    case TL_ARRAY: case TL_LIST: return "a list";
    case TL_MAP: case TL_DICT: return "a dict";
    case TL_PYTHON: return "a Python object that is no tensor";
  }
  return "an object of tvm-ffi type %d";
}

/* `argument "b" (2nd): expected f16*[n]`: where an argument stands among those that a caller passes. */
TL_COLD static void tl_add_expected(int index) {
  static const char endings[4][3] = {"th", "st", "nd", "rd"};
  int position = 0;
  for (int i = 0; i <= index; i++) position += tl_arguments[i].passed;
  int last = position % 10, teen = position % 100 / 10 == 1;
  tl_add("argument \"%s\" (%d%s): expected %s", tl_name_of(index), position,
         endings[!teen && last < 4 ? last : 0], tl_strings + tl_arguments[index].type);
}

/* Says what was expected of a tensor and what it is; the caller adds what else is wrong with it. */
TL_COLD static int tl_wrong_tensor(const tl_call *call, const char *kind, int index) {
  const tl_argument *argument = &tl_arguments[index];
  const char *before = " with ";
  tl_begin_message(kind);
  tl_add_expected(index);
  for (int axis = 0; axis < argument->rank; axis++) {
    const tl_dim *dim = &tl_dims[argument->first_dim + axis];
    if (dim->kind != TL_DIM_ARGUMENT || call->bound_by[dim->value] < 0) continue;
    if (call->bound_by[dim->value] == index) continue;
    tl_add("%s%s = %lld (from \"%s\")", before, tl_strings + dim->text, (long long)call->number[dim->value],
           tl_name_of(call->bound_by[dim->value]));
    before = ", ";
  }
  tl_add(", got ");
  tl_add_tensor(call->tensor[index]);
  return -1;
}

/* The same of an argument that is no tensor, or should be none. */
TL_COLD static int tl_wrong_value(const char *kind, int index, const tl_any *any) {
  const tl_tensor *tensor = tl_tensor_of(any);
  tl_begin_message(kind);
  tl_add_expected(index);
  tl_add(", got ");
  if (tensor) tl_add_tensor(tensor);
  else if (any->kind == TL_FLOAT) tl_add("float %g", any->as.real);
  else if (any->kind == TL_INT) tl_add("int %lld", (long long)any->as.integer);
  else tl_add(tl_format_of(any), any->kind);
  return -1;
}
