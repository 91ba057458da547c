// The launch layer: how the rows of one call are divided, and on what they run.
#pragma once

#include "onnxfold/kernels.h"

namespace onnxfold {

// Why a launch failed, in the words of whoever lent the executor; null is success.
struct Failure;

// What a runtime lends for one call. A device with a stream will find it here too.
struct Executor {
  // Calls task(data, i) for every i < count, on any threads, and returns when all have returned.
  using Task = void (*)(void* data, size_t index);
  Failure* (*parallel_for)(void* context, Task task, size_t count, void* data);
  void* context;
};

// One device: the name of its execution provider in ONNX Runtime, and its entry points. `find`
// gives null for an op that the device lacks.
struct Backend {
  const char* provider;
  RowsFunction (*find)(const Op& op, ElementType type);
  Failure* (*launch)(RowsFunction rows, const Arguments& arguments, const Executor& executor);
};

extern const Backend cpu_backend;

// How many rows of `size` elements one task takes, at least 1.
int64_t rows_per_chunk(int64_t rows, int64_t size);

}  // namespace onnxfold
