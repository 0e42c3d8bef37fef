// Storage of a model that is used for inference only.
#pragma once

#include "ovq/base/fields.h"
#include "ovq/ops/ovq_attention/state.h"

namespace ovq::models {

using kernels::StateDtype;

struct StorageOptions {
  StateDtype weights = StateDtype::float32;
  StateDtype states = StateDtype::float32;
};

template <class Fields>
void list_fields(Fields& field, StorageOptions& o) {
  field("weights", o.weights, "dtype of matrices and embeddings in memory; computations are in float32");
  field("state_dtype", o.states, "dtype of KV caches and centroids in memory and in files");
}

}  // namespace ovq::models
