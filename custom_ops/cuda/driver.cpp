// The kernels without ONNX Runtime, for programs that hold device pointers of their own: the list of
// tests/custom_ops/cuda_list.py and benchmarks/gpu_kernels.py.
#include <string.h>

#include "launch.h"
#include "onnxfold/ops.h"

#define ONNXFOLD_EXPORT extern "C" __attribute__((visibility("default")))

// Puts one call on a stream. type: 0 float32, 1 float16, 2 bfloat16; multiprocessors: see run.
// Null, or what went wrong.
ONNXFOLD_EXPORT const char* onnxfold_run(const char* name, int type,
                                         const onnxfold::Arguments* arguments, int multiprocessors,
                                         void* stream) {
  using namespace onnxfold;
  for (size_t i = 0; i < op_count; ++i) {
    if (strcmp(ops[i].name, name) != 0) continue;
    const cudaError_t error = cuda::run(ops[i], static_cast<ElementType>(type), *arguments,
                                        multiprocessors, static_cast<cudaStream_t>(stream));
    return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
  }
  return "no such op";
}
