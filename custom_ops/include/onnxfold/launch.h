// The launch layer: how the rows of one call are divided, and on what they run.
#pragma once

#include "onnxfold/kernels.h"

namespace onnxfold {

// What a runtime lends for one call. A device with a stream adds it here.
struct Executor {
  // Calls task(data, i) for every i < count, on any threads, and returns when all have returned;
  // gives null, or why it could not.
  using Task = void (*)(void* data, size_t index);
  void* (*parallel_for)(void* context, Task task, size_t count, void* data);
  void* context;
};

// One device: the name of its execution provider in ONNX Runtime and its two entry points.
// `find` gives null for an op that the device lacks; `launch` gives what parallel_for gave.
struct Backend {
  const char* provider;
  RowsFunction (*find)(const Op& op, ElementType type);
  void* (*launch)(RowsFunction rows, const Arguments& arguments, const Executor& executor);
};

extern const Backend cpu_backend;

// Rows of this size in one chunk, for `rows` of them; at least 1.
int64_t rows_per_chunk(int64_t rows, int64_t size);

}  // namespace onnxfold
