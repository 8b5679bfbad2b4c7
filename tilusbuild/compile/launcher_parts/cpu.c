/* The launch on the cpu: one call of the template's function, whose loops are its own. */
static void tl_call_template(const tl_value *value);

static int tl_start(tl_call *call, void *stream, int stream_given) {
  (void)stream;
  (void)stream_given;
  tl_call_template(call->value);
  return 0;
}
