/* What every launcher does before it launches: read the arguments, check them, raise what is wrong. */

#ifdef TL_STRIDES
static int tl_is_empty(const tl_tensor *tensor) {
  for (int axis = 0; axis < tensor->rank; axis++)
    if (tensor->shape[axis] == 0) return 1;
  return 0;
}

/* Reads the strides of a tensor that declares them, in elements. An axis of one element, and a tensor
   of none, may have any: only its name, and no number, says something. */
static int tl_take_strides(tl_call *call, int index) {
  const tl_tensor *tensor = call->tensor[index];
  int64_t dense = 1;
  if (tl_strides[index] < 0) return 0;
  for (int axis = tensor->rank - 1; axis >= 0; axis--) {
    const tl_dim *dim = &tl_dims[tl_strides[index] + axis];
    int64_t stride = tensor->strides ? tensor->strides[axis] : dense;
    if (dim->kind == TL_DIM_ARGUMENT) {
      call->number[dim->value] = stride;
      call->bound_by[dim->value] = (int16_t)index;
      call->bound_axis[dim->value] = (int16_t)axis;
    } else if (stride != dim->value && tensor->shape[axis] > 1 && !tl_is_empty(tensor)) {
      tl_wrong_tensor(call, "ValueError", index);
      return tl_add(" with stride %lld of axis %d, which must be %lld", (long long)stride, axis,
                    (long long)dim->value);
    }
    if (__builtin_mul_overflow(dense, tensor->shape[axis], &dense)) dense = 0;
  }
  return 0;
}

#endif
/* Reads one tensor's bare and literal dimensions; expressions wait until all of them are known. */
static int tl_take_tensor(tl_call *call, int index, const tl_any *any) {
  const tl_argument *argument = &tl_arguments[index];
  const tl_tensor *tensor = tl_tensor_of(any);
#ifdef TL_OPTIONAL
  if (any->kind == TL_NONE && tl_optional[index]) {
    call->value[index].pointer = NULL;
    return 0;
  }
#endif
  if (!tensor) return tl_wrong_value("TypeError", index, any);
  call->tensor[index] = tensor;
  if (tensor->dtype.code != argument->code || tensor->dtype.bits != argument->bits ||
#ifdef TL_NEW_FLOATS
      /* What has less than a byte comes in pairs. */
      tensor->dtype.lanes != (argument->bits == 4 ? 2 : 1))
#else
      tensor->dtype.lanes != 1)
#endif
    return tl_wrong_tensor(call, "TypeError", index);
#ifdef TL_ANY_SHAPE
  if (tl_any_shape[index]) return 0;
#endif
  if (tensor->rank != argument->rank) return tl_wrong_tensor(call, "ValueError", index);
  for (int axis = 0; axis < tensor->rank; axis++) {
    const tl_dim *dim = &tl_dims[argument->first_dim + axis];
    int64_t size = tensor->shape[axis];
    if (dim->kind == TL_DIM_LITERAL && size != dim->value)
      return tl_wrong_tensor(call, "ValueError", index);
    if (dim->kind != TL_DIM_ARGUMENT) continue;
    if (call->bound_by[dim->value] >= 0 && call->number[dim->value] != size)
      return tl_wrong_tensor(call, "ValueError", index);
    if (call->bound_by[dim->value] < 0) {
      call->number[dim->value] = size;
      call->bound_by[dim->value] = (int16_t)index;
      call->bound_axis[dim->value] = (int16_t)axis;
    }
  }
#ifdef TL_STRIDES
  if (tl_take_strides(call, index)) return -1;
#endif
  return 0;
}

/* Stores an integer as the argument's type. The value was checked against the type's range. */
static inline __attribute__((always_inline)) void tl_store(tl_call *call, int index, int64_t number) {
  tl_value *value = &call->value[index];
  call->number[index] = number;
  value->u64 = 0;
  switch (tl_arguments[index].bits) {
    case 8: value->i8 = (int8_t)number; break;
    case 16: value->i16 = (int16_t)number; break;
    case 32: value->i32 = (int32_t)number; break;
    default: value->i64 = number;
  }
}

#ifdef TL_U64
static int tl_is_u64(const tl_argument *argument) {
  return argument->rank == TL_SCALAR && argument->code == TL_CODE_UINT && argument->bits == 64;
}

/* tvm-ffi's integer beyond int64_t: two's complement, the least significant word first. */
typedef struct { size_t count; int64_t words[]; } tl_big_int;

/* The bits of an integer that is not negative and has 64 of them at most. */
static int tl_u64_of(const tl_any *any, uint64_t *bits) {
  if (any->kind != TL_BIG_INT) {
    *bits = (uint64_t)any->as.integer;
    return any->as.integer >= 0;
  }
  const tl_big_int *big = (const tl_big_int *)((const char *)any->as.pointer + TL_OBJECT_HEAD);
  *bits = (uint64_t)big->words[0];
  return big->count == 2 && big->words[1] == 0;
}

/* The limits of a u64, and its number, are kept as bits: no expression can read one. */
static int tl_u64_is_outside(const tl_argument *argument, uint64_t bits) {
  return bits < (uint64_t)argument->low || bits > (uint64_t)argument->high;
}

static int tl_take_u64(tl_call *call, int index, const tl_any *any) {
  const tl_argument *argument = &tl_arguments[index];
  uint64_t bits;
  if (any->kind != TL_INT && any->kind != TL_BOOL && any->kind != TL_BIG_INT)
    return tl_wrong_value("TypeError", index, any);
  if (!tl_u64_of(any, &bits) || tl_u64_is_outside(argument, bits)) {
    tl_wrong_value("ValueError", index, any);
    return tl_add(", which is outside %llu..%llu", (unsigned long long)argument->low,
                  (unsigned long long)argument->high);
  }
  tl_store(call, index, (int64_t)bits);
  return 0;
}

#endif
#ifdef TL_POINTER
enum { TL_CODE_POINTER = 3 };

/* An address, as an integer or as tvm-ffi's opaque pointer; None is null. */
static int tl_take_pointer(tl_call *call, int index, const tl_any *any) {
  if (any->kind == TL_NONE) call->value[index].pointer = NULL;
  else if (any->kind == TL_OPAQUE) call->value[index].pointer = any->as.pointer;
  else if (any->kind == TL_INT) call->value[index].pointer = (void *)(uintptr_t)any->as.integer;
#ifdef TL_WORKSPACES
  else if (tl_workspace[index] && tl_tensor_of(any)) call->tensor[index] = tl_tensor_of(any);
#endif
  else {
    tl_wrong_value("TypeError", index, any);
    return tl_add(": pass an address as an int, or None");
  }
  return 0;
}

#endif
#ifdef TL_STRUCT
enum { TL_CODE_STRUCT = 255, TL_BYTES_POINTER = 9, TL_SMALL_BYTES_MOST = 7 };
typedef struct { const char *data; size_t size; } tl_bytes;

/* A struct's bytes, which the caller keeps until the call is over. */
static int tl_take_struct(tl_call *call, int index, const tl_any *any) {
  tl_bytes found = {NULL, 0};
  if (any->kind == TL_BYTES_POINTER) found = *(const tl_bytes *)any->as.pointer;
  else if (any->kind == TL_BYTES) found = *(const tl_bytes *)((const char *)any->as.pointer + TL_OBJECT_HEAD);
  else if (any->kind == TL_SMALL_BYTES && any->padding <= TL_SMALL_BYTES_MOST)
    found = (tl_bytes){(const char *)&any->as, any->padding};
  else {
    tl_wrong_value("TypeError", index, any);
    return tl_add(": pass its bytes");
  }
  if (found.size != tl_struct_bytes[index]) {
    tl_wrong_value("ValueError", index, any);
    return tl_add(" of %zu, where it has %d", found.size, (int)tl_struct_bytes[index]);
  }
  call->value[index].pointer = (void *)found.data;
  return 0;
}

#endif
static int tl_take_scalar(tl_call *call, int index, const tl_any *any) {
  const tl_argument *argument = &tl_arguments[index];
  int whole = any->kind == TL_INT || any->kind == TL_BOOL;
#ifdef TL_U64
  if (tl_is_u64(argument)) return tl_take_u64(call, index, any);
#endif
#ifdef TL_STRUCT
  if (argument->code == TL_CODE_STRUCT) return tl_take_struct(call, index, any);
#endif
#ifdef TL_POINTER
  if (argument->code == TL_CODE_POINTER) return tl_take_pointer(call, index, any);
#endif
  if (argument->code == TL_CODE_FLOAT) {
    if (!whole && any->kind != TL_FLOAT) return tl_wrong_value("TypeError", index, any);
    double real = whole ? (double)any->as.integer : any->as.real;
    call->value[index].u64 = 0;
    if (argument->bits == 64) {
      call->value[index].f64 = real;
      return 0;
    }
    if (__builtin_isfinite(real) && !__builtin_isfinite((float)real)) {
      tl_wrong_value("ValueError", index, any);
      return tl_add(", which f32 cannot hold");
    }
    call->value[index].f32 = (float)real;
    return 0;
  }
  if (any->kind == TL_BIG_INT) return tl_wrong_value("ValueError", index, any);
  if (!whole) return tl_wrong_value("TypeError", index, any);
  if (any->as.integer < argument->low || any->as.integer > argument->high) {
    tl_wrong_value("ValueError", index, any);
    return tl_add(", which is outside %lld..%lld", (long long)argument->low, (long long)argument->high);
  }
  tl_store(call, index, any->as.integer);
  return 0;
}

static int tl_check_dimension(tl_call *call, int index) {
  const tl_argument *argument = &tl_arguments[index];
  int64_t size = call->number[index];
#ifdef TL_OPTIONAL
  if (call->bound_by[index] < 0) { /* of a tensor that is not there */
    tl_store(call, index, 0);
    return 0;
  }
#endif
  if (size < argument->low || size > argument->high)
    return tl_fail("ValueError", "dimension %s is %lld (axis %d of \"%s\"), outside %lld..%lld",
                   tl_name_of(index), (long long)size, call->bound_axis[index],
                   tl_name_of(call->bound_by[index]), (long long)argument->low,
                   (long long)argument->high);
  tl_store(call, index, size);
  return 0;
}

/* The size that an axis should have, once the arguments are known. */
static int tl_size_of(const tl_call *call, const tl_dim *dim, int64_t *size) {
  *size = dim->kind == TL_DIM_ARGUMENT ? call->number[dim->value] : dim->value;
#ifdef TL_EXPRESSIONS
  if (dim->kind == TL_DIM_EXPRESSION) return tl_dimension((int)dim->value, call->number, size);
#endif
  return 0;
}

#ifdef TL_EXPRESSIONS
static int tl_check_expressions(tl_call *call, int index) {
  const tl_argument *argument = &tl_arguments[index];
  for (int axis = 0; axis < argument->rank; axis++) {
    const tl_dim *dim = &tl_dims[argument->first_dim + axis];
    int64_t size;
    if (dim->kind != TL_DIM_EXPRESSION) continue;
    if (tl_size_of(call, dim, &size)) return -1;
    if (call->tensor[index]->shape[axis] != size) {
      tl_wrong_tensor(call, "ValueError", index);
      return tl_add(": %s is %lld", tl_strings + dim->text, (long long)size);
    }
  }
  return 0;
}

#endif
static int tl_check_device(tl_call *call, int index) {
  const tl_device device = call->tensor[index]->device;
#ifdef TL_CONSTANTS
  if (tl_is_constant[index] && (device.kind == TL_ON_CPU || device.kind == TL_ON_CUDA_HOST)) return 0;
#endif
#ifdef TL_CUDA
  if (device.kind == TL_ON_CUDA_MANAGED) return 0;
  /* Where there is no driver there is no tensor on a device: say what is really wrong. */
  if (device.kind != TL_ON_CUDA && tl_find_driver()) return -1;
  if (device.kind != TL_ON_CUDA) {
    tl_wrong_tensor(call, "ValueError", index);
    return tl_add(", not on a cuda device");
  }
  if (call->device >= 0 && call->device != device.index) {
    tl_wrong_tensor(call, "ValueError", index);
    return tl_add(", but \"%s\" is on cuda:%d", tl_name_of(call->device_said_by), call->device);
  }
  call->device = device.index;
  call->device_said_by = index;
#else
  if (device.kind != TL_ON_CPU && device.kind != TL_ON_CUDA_HOST) {
    tl_wrong_tensor(call, "ValueError", index);
    return tl_add(", not on the cpu");
  }
#endif
  return 0;
}

/* Dense in row-major order; axes of one element, and tensors of none, may have any stride. */
static int tl_check_memory(tl_call *call, int index) {
  const tl_tensor *tensor = call->tensor[index];
  int64_t expected = 1;
  int dense = 1, empty = 0;
  for (int axis = tensor->rank - 1; axis >= 0; axis--) {
    if (tensor->shape[axis] == 0) empty = 1;
    if (tensor->strides && tensor->shape[axis] != 1 && tensor->strides[axis] != expected) dense = 0;
    if (__builtin_mul_overflow(expected, tensor->shape[axis], &expected)) dense = 0;
  }
#ifdef TL_STRIDES
  if (tl_strides[index] >= 0) dense = 1;
#endif
  if (!dense && !empty) {
    tl_wrong_tensor(call, "ValueError", index);
    tl_add(" with strides ");
    tl_add_tuple(tensor->strides, tensor->strides ? tensor->rank : 0);
    return tl_add(": it must be contiguous (row-major)");
  }
  /* torch adds a view's offset to the null of a tensor that has no memory, a fake or a freed one.
     Linux maps nothing as low as this (vm.mmap_min_addr). */
  if (!empty && (uintptr_t)tensor->data < 0x10000) {
    tl_wrong_tensor(call, "ValueError", index);
    return tl_add(" with no memory (its data is null)");
  }
  char *data = tensor->data ? (char *)tensor->data + tensor->byte_offset : NULL;
  uint32_t align = tl_arguments[index].align;
  if (!empty && (uintptr_t)data & (align - 1)) {
    tl_wrong_tensor(call, "ValueError", index);
    return tl_add(" at an address that is not a multiple of %u bytes", (unsigned)align);
  }
  call->value[index].pointer = data;
  return 0;
}

TL_COLD static int tl_wrong_count(int32_t count) {
  const char *before = "";
  tl_fail("TypeError", "expected %d argument%s (", TL_PASSED, TL_PASSED == 1 ? "" : "s");
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    if (!tl_arguments[i].passed) continue;
    tl_add("%s%s", before, tl_name_of(i));
    before = ", ";
  }
  return tl_add("), got %d", count);
}

static void tl_begin(tl_call *call) {
  tl_error.text[0] = 0;
  tl_error.kind = NULL;
  call->device = -1;
  call->device_said_by = -1;
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    __asm__ volatile("" ::: "memory"); /* no `rep stos`: that takes longer to begin */
#if defined TL_OPTIONAL || defined TL_WORKSPACES
    call->tensor[i] = NULL;
#endif
    call->bound_by[i] = -1;
    call->number[i] = 0;
  }
}

static int tl_take(tl_call *call, const tl_any *args, int32_t count) {
  if (count != TL_PASSED) return tl_wrong_count(count);
  for (int i = 0, next = 0; i < TL_ARGUMENTS; i++) {
    if (!tl_arguments[i].passed) continue;
    const tl_any *any = &args[next++];
    if (tl_arguments[i].rank == TL_SCALAR ? tl_take_scalar(call, i, any) : tl_take_tensor(call, i, any))
      return -1;
  }
  for (int i = 0; i < TL_ARGUMENTS; i++)
    if (!tl_arguments[i].passed && tl_check_dimension(call, i)) return -1;
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    if (tl_arguments[i].rank == TL_SCALAR) continue;
#ifdef TL_OPTIONAL
    if (!call->tensor[i]) continue;
#endif
#ifdef TL_EXPRESSIONS
    if (tl_check_expressions(call, i)) return -1;
#endif
    if (tl_check_device(call, i) || tl_check_memory(call, i)) return -1;
  }
  return 0;
}

/* The plain C call has no shapes to check: only the ranges of what it is given. */
static int tl_check_ranges(const tl_call *call) {
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    const tl_argument *argument = &tl_arguments[i];
    int integer = argument->rank == TL_SCALAR && argument->code != TL_CODE_FLOAT;
#ifdef TL_U64
    if (tl_is_u64(argument)) {
      if (tl_u64_is_outside(argument, (uint64_t)call->number[i]))
        return tl_fail("ValueError", "argument \"%s\": %llu is outside %llu..%llu", tl_name_of(i),
                       (unsigned long long)call->number[i], (unsigned long long)argument->low,
                       (unsigned long long)argument->high);
      continue;
    }
#endif
    if (integer && (call->number[i] < argument->low || call->number[i] > argument->high))
      return tl_fail("ValueError", "argument \"%s\": %lld is outside %lld..%lld", tl_name_of(i),
                     (long long)call->number[i], (long long)argument->low,
                     (long long)argument->high);
  }
  return 0;
}

#ifdef TL_WORKSPACES
static int tl_check_workspaces(tl_call *call);

#endif
static int tl_check_plain(tl_call *call) {
  if (tl_check_ranges(call)) return -1;
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    const tl_argument *argument = &tl_arguments[i];
    int empty = 0;
#ifdef TL_STRUCT
    if (tl_struct_bytes[i] && !call->value[i].pointer)
      return tl_fail("ValueError", "argument \"%s\" is a null pointer", tl_name_of(i));
#endif
    if (argument->rank == TL_SCALAR || call->value[i].pointer) continue;
#ifdef TL_OPTIONAL
    if (tl_optional[i]) continue;
#endif
#ifdef TL_ANY_SHAPE
    if (tl_any_shape[i]) continue; /* it may have no elements */
#endif
    for (int axis = 0; axis < argument->rank; axis++) {
      int64_t size;
      if (tl_size_of(call, &tl_dims[argument->first_dim + axis], &size)) return -1;
      if (size == 0) empty = 1;
    }
    if (!empty) return tl_fail("ValueError", "argument \"%s\" is a null pointer", tl_name_of(i));
  }
#ifdef TL_WORKSPACES
  if (tl_check_workspaces(call)) return -1;
#endif
  return 0;
}

/* A function of tvm-ffi, of whichever copy this process has loaded; NULL when it has none. */
static void *tl_ffi_function(const char *name) {
  void *found = dlsym(RTLD_DEFAULT, name);
  if (!found) {
    void *library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library) {
      found = dlsym(library, name);
      dlclose(library);
    }
  }
  return found;
}

static int tl_raise(void) {
  void (*set)(const char *, const char *);
  *(void **)&set = tl_ffi_function("TVMFFIErrorSetRaisedFromCStr");
  if (set) set(tl_error.kind ? tl_error.kind : "RuntimeError", tl_error.text);
  return -1;
}

TL_EXPORT int __tvm_ffi_launch(void *self, const tl_any *args, int32_t count, tl_any *result) {
  tl_call call;
  (void)self;
  tl_begin(&call);
  if (tl_take(&call, args, count)) return tl_raise();
#ifdef TL_WORKSPACES
  if (tl_check_workspaces(&call)) return tl_raise();
#endif
  if (tl_start(&call, NULL, 0)) return tl_raise();
  result->kind = TL_NONE;
  result->padding = 0;
  result->as.integer = 0;
  return 0;
}
