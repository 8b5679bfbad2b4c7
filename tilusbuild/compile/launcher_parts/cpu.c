/* The launch on the cpu: one call of the template's function, whose loops are its own. */
static void tl_call_template(const tl_value *value);

#ifdef TL_ZEROED
static int tl_zero(void *memory, size_t bytes, void *stream) {
  (void)stream;
  memset(memory, 0, bytes);
  return 0;
}

#endif
static int tl_start(tl_call *call, void *stream, int stream_given) {
  (void)stream_given;
#ifdef TL_ZEROED
  if (tl_zero_workspaces(call, stream)) return -1;
#endif
  (void)stream;
  tl_call_template(call->value);
  return 0;
}
