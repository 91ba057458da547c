// The launch layer's decisions, apart from any call of CUDA: which kernel, on how many threads.
#pragma once

#include "onnxfold/kernels.h"

namespace onnxfold {
namespace cuda {

struct Plan {
  int threads_per_row;    // 8 or 32: part of a warp or one, several rows in a block; 0: a block
  int vectors;            // in the registers of each thread: 1, 2, 4 or 8; 0: none, the row is
                          // read again for every step
  bool shifted;           // rows or their scale, bias or linear_bias lie beside multiples of 16 bytes
  bool wide;              // where vectors is 0: moves whole vectors all the same
  int threads;            // in a block
  int64_t blocks;         // 0: there is nothing to do
};

// The largest block: what the registers of a thread with so many vectors leave room for. 65536
// registers are 64 for each of 1024 threads, of which 8 vectors fill 32, with the residual all;
// shifted vectors need their places as well.
template <int Vectors, bool Shifted>
constexpr int kMostThreads = Vectors == 0 || Vectors > (Shifted ? 2 : 4) ? 512 : 1024;
constexpr int kShortRowThreads = 128;  // of a block that holds several rows

Plan plan_rows(const Op& op, ElementType type, const Arguments& arguments, int multiprocessors);

// What the sums of a row are multiplied by.
float inverse_size(const Op& op, int64_t size);

}  // namespace cuda
}  // namespace onnxfold
