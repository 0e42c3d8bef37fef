// How a model that only reads and writes is kept in memory.
#pragma once

#include "ovq/base/fields.h"
#include "ovq/kernels/ovq_state.h"

namespace ovq::models {

using kernels::StateDtype;

struct StorageOptions {
  StateDtype weights = StateDtype::float32;
  StateDtype states = StateDtype::float32;
};

template <class Fields>
void list_fields(Fields& field, StorageOptions& o) {
  field("weights", o.weights, "how matrices and embeddings are kept in memory; all is computed in float32");
  field("state_dtype", o.states, "how caches of keys and values, and centroids, are kept in memory and in files");
}

}  // namespace ovq::models
