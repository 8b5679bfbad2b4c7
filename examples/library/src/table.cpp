#include <cstring>

#include "rowdot.h"

namespace {

using Run = int (*)(const void *, const void *, float *, int, int, void *);

struct Entry {
  const char *row, *vec;
  Run run;
};

const Entry table[] = {
    {"f32", "f32", row_dot<row_f32, vec_f32>}, {"f32", "i8", row_dot<row_f32, vec_i8>},
    {"i8", "f32", row_dot<row_i8, vec_f32>},   {"i8", "i8", row_dot<row_i8, vec_i8>},
    {"q8", "f32", row_dot<row_q8, vec_f32>},   {"q8", "i8", row_dot<row_q8, vec_i8>},
    {"q4", "f32", row_dot<row_q4, vec_f32>},   {"q4", "i8", row_dot<row_q4, vec_i8>},
};

}  // namespace

extern "C" int rowdot_run(const char *row, const char *vec, const void *rows, const void *values,
                          float *out, int count, int blocks, void *stream) {
  for (const Entry &each : table)
    if (!strcmp(each.row, row) && !strcmp(each.vec, vec))
      return each.run(rows, values, out, count, blocks, stream);
  return -1;
}
