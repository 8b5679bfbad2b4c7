#include <cstdio>
#include <vector>

#include "kernels.h"

int main() {
  std::vector<float> x(1000, 1.5f), y(1000, 1.0f);
  std::vector<double> z(1000, 3.0);
  kernels::saxpy(2.0f, x.data(), y.data(), 1000);
  kernels::decay_f64(z.data(), 0.5, 1000);
  if (kernels_saxpy(2.0f, nullptr, y.data(), 1000, nullptr)) std::printf("%s\n", kernels_error());
  std::printf("%g %g\n", y[999], z[999]);
  return y[999] == 4.0f && z[999] == 1.5 ? 0 : 1;
}
