#include "launch.h"

#include <stdint.h>
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
cudaError_t launch_kernel(const void* kernel, const Plan& plan, void** parameters,
                          cudaStream_t stream) {
  int major = 0;
  if (cudaError_t error = attribute_of_device<cudaDevAttrComputeCapabilityMajor>(&major)) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.threads));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = major >= 9 ? 1 : 0;
  return cudaLaunchKernelExC(&config, kernel, parameters);
}
#else
cudaError_t launch_kernel(const void* kernel, const Plan& plan, void** parameters,
                          cudaStream_t stream) {
  return cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(plan.blocks)),
                          dim3(static_cast<unsigned>(plan.threads)), parameters, 0, stream);
}
#endif

KernelFunction find(const Op& op, ElementType type, const Plan& plan) {
  switch (type) {
    case ElementType::FLOAT: return find_float(op, plan);
    case ElementType::FLOAT16: return find_half(op, plan);
    case ElementType::BFLOAT16: return find_bfloat16(op, plan);
  }
  return nullptr;
}

PartKernels find_parts(const Op& op, ElementType type, const Plan& plan) {
  switch (type) {
    case ElementType::FLOAT: return find_parts_float(op, plan);
    case ElementType::FLOAT16: return find_parts_half(op, plan);
    case ElementType::BFLOAT16: return find_parts_bfloat16(op, plan);
  }
  return {};
}

// The memory that calls on the current device take and give back in the order of their streams, so that
// a graph may capture them and calls on other streams have their own. Not the device's default pool,
// which gives all back at each synchronisation. Kept for as long as the process runs.
cudaError_t pool_of_device(cudaMemPool_t* pool) {
  constexpr int kDevices = 64;
  static std::atomic<cudaMemPool_t> known[kDevices];
  int device = 0;
  if (cudaError_t error = cudaGetDevice(&device)) return error;
  if (device >= kDevices) return cudaDeviceGetDefaultMemPool(pool, device);
  *pool = known[device].load();
  if (*pool != nullptr) return cudaSuccess;
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  if (cudaError_t error = cudaMemPoolCreate(pool, &properties)) return error;
  uint64_t kept = UINT64_MAX;
  cudaError_t error = cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &kept);
  cudaMemPool_t other = nullptr;
  if (error == cudaSuccess && known[device].compare_exchange_strong(other, *pool)) return error;
  cudaMemPoolDestroy(*pool);  // another thread was earlier
  *pool = other;
  return error;
}

cudaError_t launch_parts(const Op& op, ElementType type, const Plan& plan, Arguments& arguments,
                         Parts& parts, cudaStream_t stream) {
  const PartKernels kernels = find_parts(op, type, plan);
  float inverse = inverse_size(op, arguments.size);
  void* parameters[] = {&arguments, &inverse, &parts};
  const void* measure = reinterpret_cast<const void*>(kernels.measure);
  if (cudaError_t error = launch_kernel(measure, plan, parameters, stream)) return error;
  const void* normalise = reinterpret_cast<const void*>(kernels.normalise);
  return launch_kernel(normalise, plan, parameters, stream);
}

cudaError_t run_parts(const Op& op, ElementType type, const Plan& plan, Arguments& arguments,
                      cudaStream_t stream) {
  cudaMemPool_t pool = nullptr;
  if (cudaError_t error = pool_of_device(&pool)) return error;
  Parts parts = {nullptr, plan.parts, part_length(type, arguments.size, plan)};
  void* partials = nullptr;
  const size_t bytes = static_cast<size_t>(plan.blocks) * sizeof(Partial);
  if (cudaError_t error = cudaMallocFromPoolAsync(&partials, bytes, pool, stream)) return error;
  parts.partials = static_cast<Partial*>(partials);
  const cudaError_t error = launch_parts(op, type, plan, arguments, parts, stream);
  const cudaError_t freed = cudaFreeAsync(partials, stream);
  return error != cudaSuccess ? error : freed;
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
  Plan plan = plan_rows(op, type, arguments, multiprocessors);
  if (plan.blocks == 0) return cudaSuccess;
  Arguments copy = arguments;
  if (plan.parts > 1) {
    int pools = 0;
    if (cudaError_t error = attribute_of_device<cudaDevAttrMemoryPoolsSupported>(&pools)) return error;
    if (pools != 0) return run_parts(op, type, plan, copy, stream);
    plan = unsplit(plan);
  }
  float inverse = inverse_size(op, arguments.size);
  void* parameters[] = {&copy, &inverse};
  const void* kernel = reinterpret_cast<const void*>(find(op, type, plan));
  return launch_kernel(kernel, plan, parameters, stream);
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
