#include "fuzz/targets.h"

namespace ovq::fuzz {

std::vector<Target> targets() {
  std::vector<Target> all = file_targets();
#ifdef OVQ_WITH_TORCH
  for (Target& target : torch_targets()) all.push_back(std::move(target));
#endif
#ifdef OVQ_WITH_CLI
  for (Target& target : argument_targets()) all.push_back(std::move(target));
#endif
  return all;
}

}  // namespace ovq::fuzz
