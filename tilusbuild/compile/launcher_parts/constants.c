/* Arguments that a kernel reads of variables of the device code: copied to them on the launch's
   stream, before it. There is one variable in a context, so what is launched after a copy reads what
   was copied last: calls on one stream each have their own values, those on several must wait for
   one another. */

/* cuda.h: CUpointer_attribute, CUmemorytype, CUdevice_attribute. */
enum { TL_POINTER_MEMORY = 2, TL_MEMORY_HOST = 1, TL_MEMORY_DEVICE = 2, TL_PAGEABLE_ACCESS = 88 };

typedef struct { uint64_t to, from; size_t bytes; } tl_copy;

/* What is copied of an argument, and to where; that of a context that is current. */
static int tl_copy_of(const tl_call *call, const tl_constant_of *of, tl_copy *copy) {
  const tl_argument *argument = &tl_arguments[of->argument];
  const tl_value *value = &call->value[of->argument];
  int64_t bytes = of->bytes;
  int mode = TL_CAPTURE_RELAXED;
  for (int axis = 0; axis < argument->rank; axis++) {
    int64_t size;
    if (tl_size_of(call, &tl_dims[argument->first_dim + axis], &size)) return -1;
    if (size < 0 || __builtin_mul_overflow(bytes, size, &bytes))
      return tl_fail("ValueError", "argument \"%s\": axis %d is %lld", tl_name_of(of->argument), axis,
                     (long long)size);
  }
  /* A context that has not run the kernel yet is given the code here. */
  tl_driver.capture_mode(&mode);
  tl_result error = tl_driver.library_global(&copy->to, &copy->bytes, tl_library, tl_strings + of->variable);
  tl_driver.capture_mode(&mode);
  if (error)
    return tl_driver_failed(error, "the variable \"%s\" for the argument \"%s\" was not found",
                            tl_strings + of->variable, tl_name_of(of->argument));
  if ((uint64_t)bytes > copy->bytes)
    return tl_fail("ValueError", "argument \"%s\" has %lld bytes; the variable \"%s\" has %zu",
                   tl_name_of(of->argument), (long long)bytes, tl_strings + of->variable, copy->bytes);
  copy->bytes = (size_t)bytes;
  copy->from = (uintptr_t)(argument->rank == TL_SCALAR && !tl_struct_bytes[of->argument] ? value : value->pointer);
  return 0;
}

/* Copies what the kernel reads of variables, on its stream. Memory of the host that is not pinned is
   the caller's again when the call is over: the driver has taken it into a buffer of its own by
   then, but where the device reads such memory by itself. A graph would read it at every replay. */
static int tl_fill(const tl_call *call, int ordinal, void *stream) {
  tl_copy copies[TL_CONSTANT_COUNT];
  tl_result error;
  int device = 0, reads = 0, capturing = 0, pageable = 0;
  for (int i = 0; i < TL_CONSTANT_COUNT; i++)
    if ((error = tl_copy_of(call, &tl_constants[i], &copies[i]))) return error;
  for (int i = 0; i < TL_CONSTANT_COUNT; i++) {
    const tl_argument *argument = &tl_arguments[tl_constants[i].argument];
    int kind = 0;
    if (!copies[i].bytes) continue;
    if (argument->rank != TL_SCALAR && !tl_driver.pointer_attribute(&kind, TL_POINTER_MEMORY, copies[i].from) &&
        (kind == TL_MEMORY_HOST || kind == TL_MEMORY_DEVICE))
      continue;
    pageable = 1;
    if ((error = tl_driver.is_capturing(stream, &capturing))) return tl_driver_failed(error, "cuStreamIsCapturing");
    if (capturing)
      return tl_fail("ValueError", "argument \"%s\" is in the host's memory, which the graph that is captured "
                     "would read later: pass a tensor on the device, or in pinned memory",
                     tl_name_of(tl_constants[i].argument));
  }
  for (int i = 0; i < TL_CONSTANT_COUNT; i++)
    if (copies[i].bytes && (error = tl_driver.copy(copies[i].to, copies[i].from, copies[i].bytes, stream)))
      return tl_driver_failed(error, "the argument \"%s\" cannot be copied to the variable \"%s\"",
                              tl_name_of(tl_constants[i].argument), tl_strings + tl_constants[i].variable);
  if (!pageable) return 0;
  tl_driver.device_get(&device, ordinal);
  tl_driver.device_attribute(&reads, TL_PAGEABLE_ACCESS, device);
  if (reads && (error = tl_driver.synchronize(stream))) return tl_driver_failed(error, "cuStreamSynchronize");
  return 0;
}
