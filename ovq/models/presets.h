// Models by name. A pattern says which mixers alternate; a scale gives the sizes:
//   tiny/<pattern>, small/<pattern>             for experiments on a few cores; <pattern>-plain without value shift and
//                                               convolution in the layers that attend to the whole context
//   tiny/text-<pattern>, small/text-<pattern>    the same for text: a larger window, which has both too
//   paper/recall-<pattern>, paper/icl-<pattern>  8 layers, width 768 (sw-vq-1k, -2k, -3k by codewords)
//   paper/text-<pattern>                         17 layers, width 1024
//   paper/choice-<pattern>                       21 layers, width 1280
#pragma once

#include <string>
#include <vector>

#include "ovq/models/config.h"

namespace ovq::models {

struct ModelPreset {
  ModelConfig config;
  double learning_rate = 0;      // of AdamW: the paper's, or tuned here
  double min_learning_rate = 0;  // where the cosine ends
  std::string printed_size;      // as the paper prints it; empty: not in the paper
};

std::vector<std::string> pattern_names();
std::vector<std::string> preset_names();

// Errors name the closest presets.
ModelPreset model_preset(const std::string& name);

}  // namespace ovq::models
