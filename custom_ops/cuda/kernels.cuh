// The kernels of one element type, for the one file that includes this for it.
#pragma once

#include "find.h"
#include "group.cuh"
#include "loop_thread.h"
#include "row_thread.h"

namespace onnxfold {
namespace cuda {
namespace {

// With ONNXFOLD_PDL a kernel is launched before the one before it on the stream has ended (launch.cpp):
// it waits for that one's results here, before it touches any memory, and lets the next one begin,
// which waits for these.
ONNXFOLD_THREAD void begin() {
#if defined(ONNXFOLD_PDL) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// One block for each multiprocessor is all that is asked for: without the 1, ptxas spills a register
// or two to make room for one block more.
template <class T, Statistics S, bool Residual, int Width, int Vectors, bool Shifted>
__global__ void __launch_bounds__(kShortRowThreads, 1)
    short_rows_kernel(const Arguments arguments, float inverse) {
  begin();
  constexpr int kRows = kShortRowThreads / Width;
  WarpGroup<RowThread<T, S, Residual, Vectors, Shifted>, Width> group;
  const unsigned row = blockIdx.x * kRows + threadIdx.x / Width;
  normalise(group, arguments, row, inverse);
}

template <class T, Statistics S, bool Residual, int Vectors, bool Shifted>
__global__ void __launch_bounds__(kMostThreads<Vectors, Shifted>, 1)
    row_kernel(const Arguments arguments, float inverse) {
  begin();
  __shared__ Moments slots[2][32];
  BlockGroup<RowThread<T, S, Residual, Vectors, Shifted>> group(slots);
  normalise(group, arguments, blockIdx.x, inverse);
}

template <class T, Statistics S, bool Residual, bool Wide>
__global__ void __launch_bounds__(kMostThreads<0, false>, 1)
    loop_kernel(const Arguments arguments, float inverse) {
  begin();
  __shared__ Moments slots[2][32];
  for (int64_t row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
    BlockGroup<LoopThread<T, S, Residual, Wide>> group(slots);
    normalise(group, arguments, row, inverse);
    __syncthreads();  // the next row uses the same slots
  }
}

template <class T, Statistics S, bool Residual, bool Shifted>
KernelFunction in_registers(const Plan& plan) {
  if (plan.threads_per_row == 8) {
    return plan.vectors == 1 ? short_rows_kernel<T, S, Residual, 8, 1, Shifted>
                             : short_rows_kernel<T, S, Residual, 8, 2, Shifted>;
  }
  if (plan.threads_per_row == 32) {
    if constexpr (!Shifted) {
      if (plan.vectors == 4) return short_rows_kernel<T, S, Residual, 32, 4, false>;
      if (plan.vectors == 8) return short_rows_kernel<T, S, Residual, 32, 8, false>;
    }
    return plan.vectors == 1 ? short_rows_kernel<T, S, Residual, 32, 1, Shifted>
                             : short_rows_kernel<T, S, Residual, 32, 2, Shifted>;
  }
  if (plan.vectors == 1) return row_kernel<T, S, Residual, 1, Shifted>;
  if (plan.vectors == 2) return row_kernel<T, S, Residual, 2, Shifted>;
  return row_kernel<T, S, Residual, 4, Shifted>;
}

template <class T, Statistics S, bool Residual>
KernelFunction by_plan(const Plan& plan) {
  if (plan.vectors == 0)
    return plan.wide ? loop_kernel<T, S, Residual, true> : loop_kernel<T, S, Residual, false>;
  return plan.shifted ? in_registers<T, S, Residual, true>(plan)
                      : in_registers<T, S, Residual, false>(plan);
}

template <class T>
KernelFunction find_kernel(const Op& op, const Plan& plan) {
  switch (op.statistics) {
    case Statistics::RMS:
      return op.residual ? by_plan<T, Statistics::RMS, true>(plan)
                         : by_plan<T, Statistics::RMS, false>(plan);
    case Statistics::LAYER:
      return op.residual ? by_plan<T, Statistics::LAYER, true>(plan)
                         : by_plan<T, Statistics::LAYER, false>(plan);
    case Statistics::CENTER: return by_plan<T, Statistics::CENTER, false>(plan);
    case Statistics::CRMS: return by_plan<T, Statistics::CRMS, false>(plan);
    case Statistics::CRMS_FULL: return loop_kernel<T, Statistics::CRMS_FULL, false, false>;
  }
  return nullptr;
}

}  // namespace
}  // namespace cuda
}  // namespace onnxfold
