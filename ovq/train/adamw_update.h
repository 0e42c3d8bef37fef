// The loop of AdamW, in a file without torch: files that use torch's precompiled headers are not fully optimised.
#pragma once

#include <cstdint>

namespace ovq::train {

struct AdamWFactors {
  float beta1, beta2;
  float shrinkage;     // 1 - rate * decay
  float size;          // rate / (1 - beta1^t)
  float inverse_root;  // 1 / sqrt(1 - beta2^t)
  float eps;
};

void adamw_update(const AdamWFactors& factors, int64_t count, const float* gradient, float* m, float* v,
                  float* parameter);

double sum_of_squares(int64_t count, const float* values);
void scale(float factor, int64_t count, float* values);

}  // namespace ovq::train
