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
  int parts = 1;          // of a row that so many blocks share
};

// Registers of a thread of a block that has one row, at most (benchmarks/results/sass.csv): a vector
// fills 4, the operations on one some 30, shifted vectors need their places and extended kernels
// their scales as well; fewer where an element has 4 bytes, for a vector then holds 4 of them.
template <int Vectors, bool Shifted, bool Extended, int Bytes>
constexpr int kRegisters = Vectors == 1   ? (Shifted ? 56 : 40)
                           : Vectors == 2 ? 64
                           : Vectors == 4 && !Shifted && !Extended             ? 64
                           : Vectors == 4 && Shifted && !Extended && Bytes == 4 ? 80
                                                                               : 128;
constexpr int kAllRegisters = 65536;  // of a multiprocessor
// The largest block: what the registers leave room for, in groups of four warps. A multiprocessor has
// its registers in quarters, and every fourth warp is on the same one: of 17 warps one quarter has 5,
// whose registers, 112 where a thread uses 105, would be more than its 16384, though those of all 17
// are fewer than 65536, and no block would be launched. 96 would fit, but for 12.0 ptxas spills to
// get there where elements have 2 bytes. So shifted rows of those end at 4 * 512 vectors: one of 16383
// elements touches 2049 and is read by element.
template <int Vectors, bool Shifted, bool Extended, int Bytes>
constexpr int kMostThreads =
    kAllRegisters / kRegisters<Vectors, Shifted, Extended, Bytes> < 1024
        ? kAllRegisters / kRegisters<Vectors, Shifted, Extended, Bytes> / 128 * 128
        : 1024;
constexpr int kShortRowThreads = 128;  // of a block that holds several rows

// Whether an op needs the kernels that have more than norms (row_thread.h).
bool extended(const Op& op);

Plan plan_rows(const Op& op, ElementType type, const Arguments& arguments, int multiprocessors);

// The plan by which each row has one block.
Plan unsplit(Plan plan);

// Of a part of a row, in elements; the last one may be shorter.
int64_t part_length(ElementType type, int64_t size, const Plan& plan);

// What the sums of a row are multiplied by.
float inverse_size(const Op& op, int64_t size);

}  // namespace cuda
}  // namespace onnxfold
