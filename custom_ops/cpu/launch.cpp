// Chunks of rows for the threads of the caller's pool.
#include "onnxfold/launch.h"

namespace onnxfold {

namespace {

// A chunk takes about 2 us, ten times what handing it to a thread costs; 256 chunks balance a pool of
// as many threads as a machine has cores.
constexpr int64_t kChunkElements = 16384;
constexpr int64_t kMaxChunks = 256;

struct Job {
  RowsFunction rows;
  const Arguments* arguments;
  int64_t chunk;
};

void run_chunk(void* data, size_t index) {
  const Job& job = *static_cast<const Job*>(data);
  const int64_t begin = static_cast<int64_t>(index) * job.chunk;
  const int64_t left = job.arguments->rows - begin;
  job.rows(*job.arguments, begin, begin + (left < job.chunk ? left : job.chunk));
}

Failure* launch(const Op& op, ElementType type, const Arguments& arguments,
                const Executor& executor) {
  const RowsFunction rows = cpu_rows(op, type);
  Job job = {rows, &arguments, rows_per_chunk(arguments.rows, arguments.size)};
  const int64_t chunks = (arguments.rows + job.chunk - 1) / job.chunk;
  if (chunks > 1) {
    return executor.parallel_for(executor.context, run_chunk, static_cast<size_t>(chunks), &job);
  }
  rows(arguments, 0, arguments.rows);
  return nullptr;
}

}  // namespace

int64_t rows_per_chunk(int64_t rows, int64_t size) {
  const int64_t enough = size > 0 ? (kChunkElements + size - 1) / size : rows;
  const int64_t least = (rows + kMaxChunks - 1) / kMaxChunks;
  const int64_t chunk = enough > least ? enough : least;
  return chunk > 1 ? chunk : 1;
}

const Backend cpu_backend = {"CPUExecutionProvider", launch};

}  // namespace onnxfold
