// The table of ops, as data.
#pragma once

#include "onnxfold/kernels.h"

namespace onnxfold {

extern const Op ops[];
extern const size_t op_count;

}  // namespace onnxfold
