// The launch layer: puts the kernel for a call on a stream, and returns at once.
#pragma once

#include <cuda_runtime_api.h>

#include "plan.h"

namespace onnxfold {
namespace cuda {

// multiprocessors: what the plan assumes; 0 stands for those of the current device.
// No synchronisation, and no allocation but in the order of the stream: a graph may capture it.
cudaError_t run(const Op& op, ElementType type, const Arguments& arguments, int multiprocessors,
                cudaStream_t stream);

}  // namespace cuda
}  // namespace onnxfold
