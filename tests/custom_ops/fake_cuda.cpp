// Devices that are pretended, so that all of libonnxfold_ops_cuda but CUDA itself runs on the host: a
// launch runs the emulated kernel. A stream is its device's number and one. As on the device, each
// thread has a current device, 0 at first, and a launch on the stream of another one fails.
#include <cuda_runtime_api.h>
#include <stdint.h>

#include <string>

#include "../../custom_ops/cuda/find.h"
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

cudaError_t failed(cudaError_t error) { return last = error; }

void stand_in(onnxfold::Arguments, float) {}

onnxfold::cuda::KernelFunction remember(const onnxfold::Op& op, onnxfold::ElementType type,
                                        const onnxfold::cuda::Plan& plan) {
  found = {&op, type, plan};
  return stand_in;
}

}  // namespace

// What was called since the last time that somebody asked.
extern "C" const char* fake_cuda_calls() {
  static std::string told;
  told.swap(calls);
  calls.clear();
  return told.c_str();
}
extern "C" void fake_cuda_breaks(bool now) { broken = now; }
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

extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  *value = 1 + device;
  return cudaSuccess;
}

extern "C" cudaError_t cudaLaunchKernel(const void*, dim3 grid, dim3 block, void** parameters,
                                        size_t, cudaStream_t stream) {
  const int device = static_cast<int>(reinterpret_cast<intptr_t>(stream)) - 1;
  calls += "launch on " + std::to_string(current) + "\n";
  if (device != current) return failed(cudaErrorInvalidResourceHandle);
  const onnxfold::cuda::Plan& plan = found.plan;
  if (broken || grid.x != plan.blocks || block.x != static_cast<unsigned>(plan.threads))
    return failed(cudaErrorLaunchFailure);
  onnxfold::cuda::emulate_planned(*found.op, found.type, plan,
                                  *static_cast<onnxfold::Arguments*>(parameters[0]));
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
KernelFunction find_half(const Op& op, const Plan& plan) {
  return remember(op, ElementType::FLOAT16, plan);
}
KernelFunction find_brain(const Op& op, const Plan& plan) {
  return remember(op, ElementType::BFLOAT16, plan);
}
}  // namespace cuda

const Backend cpu_backend = {"CPUExecutionProvider", nullptr};

}  // namespace onnxfold
