// Devices that are pretended, so that all of libonnxfold_ops_cuda but CUDA itself runs on the host: a
// launch runs the emulated kernel. A stream is its device's number and one. As on the device, each
// thread has a current device, 0 at first, and a launch on the stream of another one fails.
#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <string>

#include "emulation.h"
#include "onnxfold/launch.h"

namespace {

struct Found {
  const onnxfold::Op* op;
  onnxfold::ElementType type;
  onnxfold::cuda::Plan plan;
};

thread_local int current = 0;
thread_local Found found;
thread_local cudaError_t last = cudaSuccess;
std::string calls;
bool broken = false;
bool pools = true;

cudaError_t failed(cudaError_t error) { return last = error; }

void stand_in(onnxfold::Arguments, float) {}

onnxfold::cuda::KernelFunction remember(const onnxfold::Op& op, onnxfold::ElementType type,
                                        const onnxfold::cuda::Plan& plan) {
  found = {&op, type, plan};
  return stand_in;
}

}  // namespace

void measure_stand_in(onnxfold::Arguments, float, onnxfold::cuda::Parts) {}
void normalise_stand_in(onnxfold::Arguments, float, onnxfold::cuda::Parts) {}

onnxfold::cuda::PartKernels remember_parts(const onnxfold::Op& op, onnxfold::ElementType type,
                                           const onnxfold::cuda::Plan& plan) {
  found = {&op, type, plan};
  return {measure_stand_in, normalise_stand_in};
}

// A stream's device, told as its number and one; a call on one that is not current fails.
bool is_current(cudaStream_t stream) {
  return static_cast<int>(reinterpret_cast<intptr_t>(stream)) - 1 == current;
}

// What was called since the last time that somebody asked.
extern "C" const char* fake_cuda_calls() {
  static std::string told;
  told.swap(calls);
  calls.clear();
  return told.c_str();
}
extern "C" void fake_cuda_breaks(bool now) { broken = now; }
extern "C" void fake_cuda_has_pools(bool now) { pools = now; }
extern "C" int fake_cuda_error() { return last; }

extern "C" cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}

extern "C" cudaError_t cudaSetDevice(int device) {
  calls += "set " + std::to_string(device) + "\n";
  current = device;
  return cudaSuccess;
}

extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  *value = attribute == cudaDevAttrMemoryPoolsSupported ? pools : 1 + device;
  return cudaSuccess;
}

extern "C" cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** parameters,
                                        size_t, cudaStream_t stream) {
  calls += "launch on " + std::to_string(current) + "\n";
  if (!is_current(stream)) return failed(cudaErrorInvalidResourceHandle);
  const onnxfold::cuda::Plan& plan = found.plan;
  if (broken || grid.x != plan.blocks || block.x != static_cast<unsigned>(plan.threads))
    return failed(cudaErrorLaunchFailure);
  const auto& arguments = *static_cast<onnxfold::Arguments*>(parameters[0]);
  if (plan.parts == 1) {
    onnxfold::cuda::emulate_planned(*found.op, found.type, plan, arguments);
    return cudaSuccess;
  }
  const bool measures = kernel == reinterpret_cast<const void*>(measure_stand_in);
  onnxfold::cuda::emulate_parts(
      *found.op, found.type, plan, arguments, *static_cast<onnxfold::cuda::Parts*>(parameters[2]),
      measures ? onnxfold::cuda::Stage::MEASURE : onnxfold::cuda::Stage::NORMALISE);
  return cudaSuccess;
}

// A pool is its device's number and one.
extern "C" cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t*, int) {
  return failed(cudaErrorLaunchFailure);  // no device here has so high a number
}
extern "C" cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  *pool = reinterpret_cast<cudaMemPool_t>(static_cast<intptr_t>(properties->location.id + 1));
  return cudaSuccess;
}
extern "C" cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}
extern "C" cudaError_t cudaMemPoolDestroy(cudaMemPool_t) { return cudaSuccess; }
extern "C" cudaError_t cudaMallocFromPoolAsync(void** memory, size_t size, cudaMemPool_t pool,
                                               cudaStream_t stream) {
  calls += "memory on " + std::to_string(reinterpret_cast<intptr_t>(pool) - 1) + "\n";
  if (!is_current(stream)) return failed(cudaErrorInvalidResourceHandle);
  *memory = memset(malloc(size), 0xff, size);  // NaN
  return cudaSuccess;
}
extern "C" cudaError_t cudaFreeAsync(void* memory, cudaStream_t) {
  calls += "free\n";
  free(memory);
  return cudaSuccess;
}

extern "C" cudaError_t cudaGetLastError() {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

extern "C" const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "broken" : "a stream of another device";
}
extern "C" const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaErrorInvalidResourceHandle";
}

namespace onnxfold {

namespace cuda {
KernelFunction find_float(const Op& op, const Plan& plan) {
  return remember(op, ElementType::FLOAT, plan);
}
PartKernels find_parts_float(const Op& op, const Plan& plan) {
  return remember_parts(op, ElementType::FLOAT, plan);
}
KernelFunction find_half(const Op& op, const Plan& plan) {
  return remember(op, ElementType::FLOAT16, plan);
}
PartKernels find_parts_half(const Op& op, const Plan& plan) {
  return remember_parts(op, ElementType::FLOAT16, plan);
}
KernelFunction find_bfloat16(const Op& op, const Plan& plan) {
  return remember(op, ElementType::BFLOAT16, plan);
}
PartKernels find_parts_bfloat16(const Op& op, const Plan& plan) {
  return remember_parts(op, ElementType::BFLOAT16, plan);
}
}  // namespace cuda

const Backend cpu_backend = {"CPUExecutionProvider", nullptr};

}  // namespace onnxfold
