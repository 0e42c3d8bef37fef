// oneDNN's product of float matrices: the speed that a tuned library reaches on this machine. First prints its version;
// then, for each n read from stdin, the seconds of one product of n x n matrices.
#include <dnnl.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  const dnnl_version_t* version = dnnl_version();
  std::printf("%d.%d.%d\n", version->major, version->minor, version->patch);
  std::fflush(stdout);
  long n = 0;
  while (std::scanf("%ld", &n) == 1) {
    const auto size = static_cast<size_t>(n) * static_cast<size_t>(n);
    std::vector<float> a(size), b(size), c(size);
    for (size_t i = 0; i < size; ++i) {
      a[i] = std::sin(0.37f * static_cast<float>(i % 1000));
      b[i] = std::cos(0.11f * static_cast<float>(i % 1013));
    }
    const auto start = std::chrono::steady_clock::now();
    if (dnnl_sgemm('N', 'N', n, n, n, 1.0f, a.data(), n, b.data(), n, 0.0f, c.data(), n) != dnnl_success) return 1;
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double wanted = 0;
    const size_t row = static_cast<size_t>(n) / 2, column = static_cast<size_t>(n) / 3;
    for (size_t k = 0; k < static_cast<size_t>(n); ++k) {
      wanted += static_cast<double>(a[row * static_cast<size_t>(n) + k]) * b[k * static_cast<size_t>(n) + column];
    }
    const bool right = std::abs(c[row * static_cast<size_t>(n) + column] - wanted) <= 1e-3 * static_cast<double>(n);
    std::printf("%.9f\n", right ? seconds : -1.0);
    std::fflush(stdout);
  }
}
