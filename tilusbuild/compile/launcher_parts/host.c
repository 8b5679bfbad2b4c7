/* The launch through the template's own host function, on the device that holds the tensors. The
   CUDA runtime is linked into this library; it opens the driver at its first call. */
extern int cudaGetDevice(int *device);
extern int cudaSetDevice(int device);
extern const char *cudaGetErrorName(int error);
extern const char *cudaGetErrorString(int error);

static int tl_call_template(const tl_value *value, void *stream);

TL_COLD static int tl_cuda_failed(const char *what, int error) {
  tl_fail("RuntimeError", "%s: %s (%s)", what, cudaGetErrorName(error), cudaGetErrorString(error));
  return error;
}

static int tl_find_driver(void) {
  int device, error = cudaGetDevice(&device);
  return error ? tl_cuda_failed("no CUDA device can be used", error) : 0;
}

#ifdef TL_ZEROED
extern int cudaMemsetAsync(void *memory, int value, size_t bytes, void *stream);

static int tl_zero(void *memory, size_t bytes, void *stream) {
  int error = cudaMemsetAsync(memory, 0, bytes, stream);
  return error ? tl_cuda_failed("a workspace cannot be filled with zeros", error) : 0;
}

#endif
static int tl_start(tl_call *call, void *stream, int stream_given) {
  int before, error;
  if ((error = cudaGetDevice(&before))) return tl_cuda_failed("no CUDA device can be used", error);
  int device = call->device < 0 ? before : call->device;
  if (!stream_given) {
    void *(*current)(int32_t, int32_t);
    *(void **)&current = tl_ffi_function("TVMFFIEnvGetStream");
    if (current) stream = current(TL_ON_CUDA, device);
  }
  if (device != before && (error = cudaSetDevice(device))) return tl_cuda_failed("cudaSetDevice", error);
#ifdef TL_ZEROED
  if (!(error = tl_zero_workspaces(call, stream)))
#endif
  if ((error = tl_call_template(call->value, stream))) tl_cuda_failed("the launch failed", error);
  if (device != before) cudaSetDevice(before);
  return error;
}
