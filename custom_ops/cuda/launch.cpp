#include "launch.h"

#include <stdio.h>

#include <atomic>

#include "find.h"
#include "onnxfold/launch.h"

namespace onnxfold {
namespace cuda {

namespace {

// An attribute of the current device, which is not 0. Asked once for each device: the kernels of a
// model are launched thousands of times in a second.
template <cudaDeviceAttr Attribute>
cudaError_t attribute_of_device(int* value) {
  constexpr int kDevices = 64;
  static std::atomic<int> known[kDevices];
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  *value = device < kDevices ? known[device].load(std::memory_order_relaxed) : 0;
  if (*value > 0) return cudaSuccess;
  cudaError_t error = cudaDeviceGetAttribute(value, Attribute, device);
  if (error == cudaSuccess && device < kDevices)
    known[device].store(*value, std::memory_order_relaxed);
  return error;
}

#if defined(ONNXFOLD_PDL)
// Begins, from compute capability 9 on, while the kernel before it on the stream still runs, and waits
// for it by itself (begin in kernels.cuh): the time that a launch takes passes meanwhile.
cudaError_t launch_kernel(KernelFunction kernel, dim3 grid, dim3 block, void** parameters,
                          cudaStream_t stream) {
  int major = 0;
  if (cudaError_t error = attribute_of_device<cudaDevAttrComputeCapabilityMajor>(&major)) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), parameters);
}
#else
cudaError_t launch_kernel(KernelFunction kernel, dim3 grid, dim3 block, void** parameters,
                          cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, parameters, 0, stream);
}
#endif

KernelFunction find(const Op& op, ElementType type, const Plan& plan) {
  switch (type) {
    case ElementType::FLOAT: return find_float(op, plan);
    case ElementType::FLOAT16: return find_half(op, plan);
    case ElementType::BFLOAT16: return find_brain(op, plan);
  }
  return nullptr;
}

// With the device current that the stream belongs to, and afterwards the one that was.
cudaError_t run_on(int device, const Op& op, ElementType type, const Arguments& arguments,
                   cudaStream_t stream) {
  int current = 0;
  if (cudaError_t error = cudaGetDevice(&current)) return error;
  if (current == device) return run(op, type, arguments, 0, stream);
  if (cudaError_t error = cudaSetDevice(device)) return error;
  const cudaError_t error = run(op, type, arguments, 0, stream);
  const cudaError_t back = cudaSetDevice(current);
  return error != cudaSuccess ? error : back;
}

Failure* launch(const Op& op, ElementType type, const Arguments& arguments,
                const Executor& executor) {
  void* stream = nullptr;
  int device = 0;
  if (Failure* failure = executor.stream(executor.context, &stream)) return failure;
  if (Failure* failure = executor.device(executor.context, &device)) return failure;
  const cudaError_t error = run_on(device, op, type, arguments, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return nullptr;
  cudaGetLastError();  // told once, here: not to whoever asks this runtime next
  char why[160];
  snprintf(why, sizeof(why), "CUDA: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
  return executor.fail(executor.context, why);
}

}  // namespace

cudaError_t run(const Op& op, ElementType type, const Arguments& arguments, int multiprocessors,
                cudaStream_t stream) {
  if (multiprocessors == 0) {
    constexpr cudaDeviceAttr kCount = cudaDevAttrMultiProcessorCount;
    if (cudaError_t error = attribute_of_device<kCount>(&multiprocessors)) return error;
  }
  const Plan plan = plan_rows(op, type, arguments, multiprocessors);
  if (plan.blocks == 0) return cudaSuccess;
  Arguments copy = arguments;
  float inverse = inverse_size(op, arguments.size);
  void* parameters[] = {&copy, &inverse};
  return launch_kernel(find(op, type, plan), dim3(static_cast<unsigned>(plan.blocks)),
                       dim3(static_cast<unsigned>(plan.threads)), parameters, stream);
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
