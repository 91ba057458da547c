// The threads of the device that share a row, and their sums.
#pragma once

#include "algorithm.h"

namespace onnxfold {
namespace cuda {

// Every thread ends with the sum of its `Width` neighbours.
template <int Width>
ONNXFOLD_THREAD float shuffled_sum(float v) {
  ONNXFOLD_UNROLL
  for (int distance = Width / 2; distance > 0; distance /= 2)
    v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

template <int Width>
ONNXFOLD_THREAD float shuffled_most(float v) {
  ONNXFOLD_UNROLL
  for (int distance = Width / 2; distance > 0; distance /= 2)
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, distance));
  return v;
}

template <int Width, bool Sum, bool Squares>
ONNXFOLD_THREAD Moments shuffled_sum(Moments m) {
  if constexpr (Sum) m.sum = shuffled_sum<Width>(m.sum);
  if constexpr (Squares) m.squares = shuffled_sum<Width>(m.squares);
  return m;
}

// A warp, or a part of one.
template <class Thread_, int Width>
class WarpGroup {
 public:
  using Thread = Thread_;

  template <class Step>
  ONNXFOLD_THREAD void each(Step step) {
    step(thread_, static_cast<int>(threadIdx.x % Width), Width);
  }

  template <int Slot, bool Sum, bool Squares, class Step>
  ONNXFOLD_THREAD Moments sum(Step step) {
    return shuffled_sum<Width, Sum, Squares>(step(thread_));
  }

  template <int Slot, class Step>
  ONNXFOLD_THREAD float largest(Step step) {
    return shuffled_most<Width>(step(thread_));
  }

  // Whether it holds for a row of the warp.
  ONNXFOLD_THREAD static bool any(bool holds) {
    return Width == 32 ? holds : __any_sync(0xffffffffu, holds);
  }

 private:
  Thread thread_;
};

// A block. Each sum of a row has its own slot of shared memory, so that one barrier for each is
// enough: no warp writes what another may still read.
template <class Thread_>
class BlockGroup {
 public:
  using Thread = Thread_;
  using Partial = Moments[32];  // of each warp

  ONNXFOLD_THREAD explicit BlockGroup(Partial* slots) : slots_(slots) {}

  template <class Step>
  ONNXFOLD_THREAD void each(Step step) {
    step(thread_, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x));
  }

  template <int Slot, bool Sum, bool Squares, class Step>
  ONNXFOLD_THREAD Moments sum(Step step) {
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const Moments own = shuffled_sum<32, Sum, Squares>(step(thread_));
    Moments& slot = slots_[Slot][threadIdx.x / 32];
    if (lane == 0 && Sum) slot.sum = own.sum;
    if (lane == 0 && Squares) slot.squares = own.squares;
    __syncthreads();
    Moments all = {0.0f, 0.0f};
    if (lane < warps && Sum) all.sum = slots_[Slot][lane].sum;
    if (lane < warps && Squares) all.squares = slots_[Slot][lane].squares;
    return shuffled_sum<32, Sum, Squares>(all);
  }

  template <int Slot, class Step>
  ONNXFOLD_THREAD float largest(Step step) {
    const unsigned lane = threadIdx.x % 32, warps = blockDim.x / 32;
    const float own = shuffled_most<32>(step(thread_));
    if (lane == 0) slots_[Slot][threadIdx.x / 32].sum = own;
    __syncthreads();
    return shuffled_most<32>(lane < warps ? slots_[Slot][lane].sum : 0.0f);
  }

  // Every thread has the row's sums, bit for bit: butterflies add the same pairs in each lane.
  ONNXFOLD_THREAD static bool any(bool holds) { return holds; }

 private:
  Thread thread_;
  Partial* slots_;
};

}  // namespace cuda
}  // namespace onnxfold
