/* tvm-ffi's packed call: the sizes are read off the arguments, and everything else is the chosen
   program's business, complaints about the arguments included. */
typedef struct {
  void *data;
  struct { int32_t kind, index; } device;
  int32_t rank;
  struct { uint8_t code, bits; uint16_t lanes; } dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} td_tensor;
typedef struct {
  int32_t kind;
  uint32_t padding;
  union { int64_t integer; double real; void *pointer; } as;
} td_any;
enum { TD_INT = 1, TD_BOOL = 2, TD_TENSOR_POINTER = 7, TD_TENSOR = 70, TD_BIG_INT = 78, TD_OBJECT_HEAD = 24 };

static const td_tensor *td_tensor_of(const td_any *any) {
  if (any->kind == TD_TENSOR_POINTER) return any->as.pointer;
  if (any->kind != TD_TENSOR) return NULL;
  return (const td_tensor *)((const char *)any->as.pointer + TD_OBJECT_HEAD);
}

#ifdef TD_CUDA
static int td_is_ours(int kind) { return kind == 2 || kind == 13; } /* device, managed */
#else
static int td_is_ours(int kind) { return kind == 1 || kind == 3; } /* the host, pinned */
#endif

/* The power of two that divides an address, at most 256; 256 for null. */
static inline int64_t td_align(const void *pointer) {
  uintptr_t bits = (uintptr_t)pointer | 256;
  return (int64_t)(bits & (~bits + 1));
}

/* 0, or -1 where the arguments are not what they should be: any program says it better. 1, with a
   message, where only the choice cannot have them. The device is -1 for tensors that no program here is
   for. */
static int td_read_sizes(const td_any *args, int32_t count, int64_t *size, int *device) {
  if (count != TD_PASSED) return -1;
  for (int i = 0; i < TD_SIZES; i++) {
    const td_any *any = &args[td_reads[i].argument];
    const td_tensor *tensor = td_tensor_of(any);
    int axis = td_reads[i].axis;
    if (axis == -2) {
      if (!tensor && any->kind) return -1; /* not a tensor, nor None */
      size[i] = tensor ? td_align((const char *)tensor->data + tensor->byte_offset) : 256;
    } else if (axis < 0) {
      if (any->kind == TD_BIG_INT && td_reads[i].u64) return -td_beyond(td_reads[i].u64);
      if (any->kind != TD_INT && any->kind != TD_BOOL) return -1;
      size[i] = any->as.integer;
    } else {
      if (!tensor || axis >= tensor->rank) return -1;
      size[i] = tensor->shape[axis];
    }
  }
  *device = 0;
  for (int i = 0; i < count; i++) {
    const td_tensor *tensor = td_tensor_of(&args[i]);
    /* A tensor for constant memory may be on the host. */
    if (!tensor || td_is_constant[i]) continue;
    if (tensor->device.kind == 2) *device = tensor->device.index;
    if (!td_is_ours(tensor->device.kind)) *device = -1;
    break;
  }
  return 0;
}

#define TD_REFUSED "TilusbuildRefused"
static int td_raise(const char *kind) {
  void (*set)(const char *, const char *);
  *(void **)&set = dlsym(RTLD_DEFAULT, "TVMFFIErrorSetRaisedFromCStr");
  if (!set) {
    void *library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
    if (library) {
      *(void **)&set = dlsym(library, "TVMFFIErrorSetRaisedFromCStr");
      dlclose(library);
    }
  }
  if (set) set(kind, td_message);
  return -1;
}

TD_EXPORT int __tvm_ffi_launch(void *self, const td_any *args, int32_t count, td_any *result) {
  int64_t size[TD_SLOTS] = {0};
  int device = 0, source, program = TD_DEFAULT_PROGRAM, unread = td_read_sizes(args, count, size, &device);
  if (unread > 0) return td_raise("ValueError");
  if (!unread)
    program = device < 0 ? td_fail("%s: the tensors are on a device of another kind", td_name)
                         : td_choose(td_table_of(device), size, &source);
  if (program < 0) return td_raise(TD_REFUSED);
  td_functions *functions = td_open(program);
  return functions ? functions->packed(self, args, count, result) : td_raise(TD_REFUSED);
}
