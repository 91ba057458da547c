// The launch layer: how the rows of one call are divided, and on what they run.
#pragma once

#include "onnxfold/kernels.h"

namespace onnxfold {

// Why a launch failed, in the words of whoever lent the executor; null is success.
struct Failure;

// What a runtime lends for one call.
struct Executor {
  // Calls task(data, i) for every i < count, on any threads, and returns when all have returned.
  using Task = void (*)(void* data, size_t index);
  Failure* (*parallel_for)(void* context, Task task, size_t count, void* data);
  // The stream of the call's device, where the call runs on one that has streams.
  Failure* (*stream)(void* context, void** stream);
  // The number of the device that the tensors of the call are on. A thread's current device need not
  // be that one: ONNX Runtime sets it for kernels of its own.
  Failure* (*device)(void* context, int* device);
  // A failure for a reason of the device's own.
  Failure* (*fail)(void* context, const char* why);
  void* context;
};

// One device: the name of its execution provider in ONNX Runtime, and how a call of an op is put on
// it. Every device has every op in every element type.
struct Backend {
  const char* provider;
  Failure* (*launch)(const Op& op, ElementType type, const Arguments& arguments,
                     const Executor& executor);
};

extern const Backend cpu_backend;
// In libraries with CUDA: ONNX Runtime's own provider, and the one that it loads as a plugin.
extern const Backend cuda_backend;
extern const Backend cuda_plugin_backend;

// How many rows of `size` elements one task takes, at least 1.
int64_t rows_per_chunk(int64_t rows, int64_t size);

}  // namespace onnxfold
