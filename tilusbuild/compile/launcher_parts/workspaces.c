/* Workspaces: memory that a kernel needs for one call. The caller has it, and asks for its bytes. */
enum { TL_ZEROED_WORKSPACE = 2 };

static int tl_count_workspace(const tl_call *call, int index, int64_t *bytes) {
  const tl_dim *dim = &tl_dims[tl_arguments[index].first_dim];
  if (tl_size_of(call, dim, bytes)) return -1;
  if (*bytes >= 0) return 0;
  return tl_fail("ValueError", "workspace \"%s\": %s is %lld bytes", tl_name_of(index), tl_strings + dim->text,
                 (long long)*bytes);
}

static int tl_count_workspaces(const tl_call *call, int64_t *bytes) {
  for (int i = 0; i < TL_ARGUMENTS; i++)
    if (tl_workspace[i] && tl_count_workspace(call, i, bytes++)) return -1;
  return 0;
}

/* The memory of each is large enough, and on the device of the tensors. */
static int tl_check_workspaces(tl_call *call) {
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    const tl_tensor *tensor = call->tensor[i];
    int64_t bytes, size;
    if (!tl_workspace[i]) continue;
    if (tl_count_workspace(call, i, &bytes)) return -1;
    if (tensor) {
      if (tl_check_device(call, i) || tl_check_memory(call, i)) return -1;
      size = (tensor->dtype.bits * tensor->dtype.lanes + 7) / 8;
      for (int axis = 0; axis < tensor->rank; axis++) size *= tensor->shape[axis];
      if (size < bytes) {
        tl_wrong_tensor(call, "ValueError", i);
        return tl_add(" of %lld bytes, and %lld are needed", (long long)size, (long long)bytes);
      }
    }
    if (bytes && !call->value[i].pointer)
      return tl_fail("ValueError", "workspace \"%s\" is null, and %lld bytes are needed", tl_name_of(i),
                     (long long)bytes);
  }
  return 0;
}

#ifdef TL_ZEROED
static int tl_zero(void *memory, size_t bytes, void *stream);

static int tl_zero_workspaces(const tl_call *call, void *stream) {
  for (int i = 0; i < TL_ARGUMENTS; i++) {
    int64_t bytes;
    int error;
    if (tl_workspace[i] != TL_ZEROED_WORKSPACE) continue;
    if ((error = tl_count_workspace(call, i, &bytes))) return error;
    if (bytes && (error = tl_zero(call->value[i].pointer, (size_t)bytes, stream))) return error;
  }
  return 0;
}

#endif
/* For a caller that allocates: the bytes of one workspace, by its number, for these arguments. */
TL_EXPORT int __tvm_ffi_workspace(void *self, const tl_any *args, int32_t count, tl_any *result) {
  int64_t bytes[TL_ARGUMENTS];
  tl_call call;
  (void)self;
  tl_begin(&call);
  if (tl_take(&call, args + 1, count - 1) || tl_count_workspaces(&call, bytes)) return tl_raise();
  result->kind = TL_INT;
  result->padding = 0;
  result->as.integer = bytes[args->as.integer];
  return 0;
}
