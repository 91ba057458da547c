#include "launch.h"

#include <stdio.h>

#include <atomic>

#include "find.h"
#include "onnxfold/launch.h"

namespace onnxfold {
namespace cuda {

namespace {

// Asked once for each device: the kernels of a model are launched thousands of times in a second.
cudaError_t count_multiprocessors(int* count) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  *count = device < kDevices ? known[device].load(std::memory_order_relaxed) : 0;
  if (*count > 0) return cudaSuccess;
  cudaError_t error = cudaDeviceGetAttribute(count, cudaDevAttrMultiProcessorCount, device);
  if (error == cudaSuccess && device < kDevices)
    known[device].store(*count, std::memory_order_relaxed);
  return error;
}

KernelFunction find(const Op& op, ElementType type, const Plan& plan) {
  switch (type) {
    case ElementType::FLOAT: return find_float(op, plan);
    case ElementType::FLOAT16: return find_half(op, plan);
    case ElementType::BFLOAT16: return find_brain(op, plan);
  }
  return nullptr;
}

Failure* launch(const Op& op, ElementType type, const Arguments& arguments,
                const Executor& executor) {
  void* stream = nullptr;
  if (Failure* failure = executor.stream(executor.context, &stream)) return failure;
  const cudaError_t error = run(op, type, arguments, 0, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return nullptr;
  char why[160];
  snprintf(why, sizeof(why), "CUDA: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
  return executor.fail(executor.context, why);
}

}  // namespace

cudaError_t run(const Op& op, ElementType type, const Arguments& arguments, int multiprocessors,
                cudaStream_t stream) {
  if (multiprocessors == 0) {
    if (cudaError_t error = count_multiprocessors(&multiprocessors)) return error;
  }
  const Plan plan = plan_rows(op, type, arguments, multiprocessors);
  if (plan.blocks == 0) return cudaSuccess;
  Arguments copy = arguments;
  float inverse = inverse_size(op, arguments.size);
  void* parameters[] = {&copy, &inverse};
  return cudaLaunchKernel(reinterpret_cast<const void*>(find(op, type, plan)),
                          dim3(static_cast<unsigned>(plan.blocks)),
                          dim3(static_cast<unsigned>(plan.threads)), parameters, 0, stream);
}

#define ONNXFOLD_TEXT_OF(value) #value
#define ONNXFOLD_TEXT(value) ONNXFOLD_TEXT_OF(value)
// What the library was built with, which onnxfold/runtime/cuda.py finds in the file.
extern "C" __attribute__((used)) const char onnxfold_cuda_build[] =
    "onnxfold-cuda runtime " ONNXFOLD_TEXT(CUDART_VERSION) " architectures " ONNXFOLD_ARCHITECTURES;

}  // namespace cuda

const Backend cuda_backend = {"CUDAExecutionProvider", cuda::launch};
const Backend cuda_plugin_backend = {"CudaPluginExecutionProvider", cuda::launch};

}  // namespace onnxfold
