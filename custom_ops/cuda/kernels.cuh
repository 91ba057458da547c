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

// Each sum and each maximum of a row has a slot of its own.
template <bool Extended>
constexpr int kSlots = Extended ? 3 : 2;

// `normalise` three times, each compiled for what the op has: asked once instead of at every load.
template <class Group>
ONNXFOLD_THREAD void normalise_by_operands(Group& group, Arguments a, int64_t row, float inverse) {
  if (a.scale == nullptr) {
    a.bias = nullptr;  // which comes with a scale
    normalise(group, a, row, inverse);
  } else if (a.bias == nullptr) {
    a.bias = nullptr;
    __builtin_assume(a.scale != nullptr);
    normalise(group, a, row, inverse);
  } else {
    __builtin_assume(a.scale != nullptr);
    __builtin_assume(a.bias != nullptr);
    normalise(group, a, row, inverse);
  }
}

// One block for each multiprocessor is all that is asked for: without the 1, ptxas spills a register
// or two to make room for one block more.
template <class T, Statistics S, bool Residual, int Width, int Vectors, bool Shifted, bool Extended>
__global__ void __launch_bounds__(kShortRowThreads, 1)
    short_rows_kernel(const Arguments arguments, float inverse) {
  begin();
  constexpr int kRows = kShortRowThreads / Width;
  WarpGroup<RowThread<T, S, Residual, Vectors, Shifted, Extended, false>, Width> group;
  const unsigned row = blockIdx.x * kRows + threadIdx.x / Width;
  if constexpr (Shifted || Extended || Vectors == 8)
    normalise(group, arguments, row, inverse);
  else
    normalise_by_operands(group, arguments, row, inverse);
}

template <class T, Statistics S, bool Residual, int Vectors, bool Shifted, bool Extended>
__global__ void __launch_bounds__(kMostThreads<Vectors, Shifted, Extended, sizeof(T)>, 1)
    row_kernel(const Arguments arguments, float inverse) {
  begin();
  __shared__ Moments slots[kSlots<Extended>][32];
  BlockGroup<RowThread<T, S, Residual, Vectors, Shifted, Extended, true>> group(slots);
  if constexpr (Shifted || Extended)
    normalise(group, arguments, blockIdx.x, inverse);
  else
    normalise_by_operands(group, arguments, blockIdx.x, inverse);
}

template <class T, Statistics S, bool Residual, bool Wide, bool Extended>
__global__ void __launch_bounds__(kMostThreads<0, false, Extended, sizeof(T)>, 1)
    loop_kernel(const Arguments arguments, float inverse) {
  begin();
  __shared__ Moments slots[kSlots<Extended>][32];
  for (int64_t row = blockIdx.x; row < arguments.rows; row += gridDim.x) {
    BlockGroup<LoopThread<T, S, Residual, Wide, Extended>> group(slots);
    normalise(group, arguments, row, inverse);
    __syncthreads();  // the next row uses the same slots
  }
}

template <class T, Statistics S, bool Residual, bool Wide>
__global__ void __launch_bounds__(kMostThreads<0, false, false, sizeof(T)>, 1)
    measure_part_kernel(const Arguments arguments, float, const Parts parts) {
  begin();
  __shared__ Moments slots[kSlots<false>][32];
  BlockGroup<LoopThread<T, S, Residual, Wide, false, true>> group(slots);
  const unsigned row = blockIdx.x / parts.count, part = blockIdx.x % parts.count;
  measure_part(group, arguments, row, part, parts);
}

template <class T, Statistics S, bool Residual, bool Wide>
__global__ void __launch_bounds__(kMostThreads<0, false, false, sizeof(T)>, 1)
    normalise_part_kernel(const Arguments arguments, float inverse, const Parts parts) {
  begin();
  __shared__ Moments slots[kSlots<false>][32];
  BlockGroup<LoopThread<T, S, Residual, Wide, false, true>> group(slots);
  const unsigned row = blockIdx.x / parts.count, part = blockIdx.x % parts.count;
  normalise_part(group, arguments, row, part, parts, inverse);
}

template <class T, Statistics S, bool Residual, bool Shifted, bool Extended>
KernelFunction in_registers(const Plan& plan) {
  if (plan.threads_per_row == 8) {
    return plan.vectors == 1 ? short_rows_kernel<T, S, Residual, 8, 1, Shifted, Extended>
                             : short_rows_kernel<T, S, Residual, 8, 2, Shifted, Extended>;
  }
  if (plan.threads_per_row == 32) {
    if constexpr (!Shifted) {
      if (plan.vectors == 4) return short_rows_kernel<T, S, Residual, 32, 4, false, Extended>;
      if constexpr (!Extended)
        if (plan.vectors == 8) return short_rows_kernel<T, S, Residual, 32, 8, false, false>;
    }
    return plan.vectors == 1 ? short_rows_kernel<T, S, Residual, 32, 1, Shifted, Extended>
                             : short_rows_kernel<T, S, Residual, 32, 2, Shifted, Extended>;
  }
  if (plan.vectors == 1) return row_kernel<T, S, Residual, 1, Shifted, Extended>;
  if (plan.vectors == 2) return row_kernel<T, S, Residual, 2, Shifted, Extended>;
  return row_kernel<T, S, Residual, 4, Shifted, Extended>;
}

template <class T, Statistics S, bool Residual>
KernelFunction extended_by_plan(const Plan& plan) {
  if (plan.vectors == 0) return loop_kernel<T, S, Residual, false, true>;
  return in_registers<T, S, Residual, false, true>(plan);
}

template <class T, Statistics S, bool Residual>
KernelFunction by_plan(const Plan& plan) {
  if (plan.vectors == 0)
    return plan.wide ? loop_kernel<T, S, Residual, true, false>
                     : loop_kernel<T, S, Residual, false, false>;
  return plan.shifted ? in_registers<T, S, Residual, true, false>(plan)
                      : in_registers<T, S, Residual, false, false>(plan);
}

template <class T, Statistics S>
KernelFunction by_residual(const Op& op, const Plan& plan) {
  if (extended(op))
    return op.residual ? extended_by_plan<T, S, true>(plan) : extended_by_plan<T, S, false>(plan);
  return op.residual ? by_plan<T, S, true>(plan) : by_plan<T, S, false>(plan);
}

template <class T>
KernelFunction find_kernel(const Op& op, const Plan& plan) {
  switch (op.statistics) {
    case Statistics::RMS: return by_residual<T, Statistics::RMS>(op, plan);
    case Statistics::LAYER: return by_residual<T, Statistics::LAYER>(op, plan);
    case Statistics::CENTER: return by_plan<T, Statistics::CENTER, false>(plan);
    case Statistics::CRMS: return by_plan<T, Statistics::CRMS, false>(plan);
    case Statistics::CRMS_FULL: return loop_kernel<T, Statistics::CRMS_FULL, false, false, false>;
    case Statistics::ROW: return extended_by_plan<T, Statistics::ROW, false>(plan);
  }
  return nullptr;
}

template <class T, Statistics S, bool Residual>
PartKernels parts_by_width(const Plan& plan) {
  if constexpr (S != Statistics::CRMS_FULL)
    if (plan.wide)
      return {measure_part_kernel<T, S, Residual, true>, normalise_part_kernel<T, S, Residual, true>};
  return {measure_part_kernel<T, S, Residual, false>, normalise_part_kernel<T, S, Residual, false>};
}

template <class T, Statistics S>
PartKernels parts_by_residual(const Op& op, const Plan& plan) {
  return op.residual ? parts_by_width<T, S, true>(plan) : parts_by_width<T, S, false>(plan);
}

template <class T>
PartKernels find_parts(const Op& op, const Plan& plan) {
  switch (op.statistics) {
    case Statistics::RMS: return parts_by_residual<T, Statistics::RMS>(op, plan);
    case Statistics::LAYER: return parts_by_residual<T, Statistics::LAYER>(op, plan);
    case Statistics::CENTER: return parts_by_width<T, Statistics::CENTER, false>(plan);
    case Statistics::CRMS: return parts_by_width<T, Statistics::CRMS, false>(plan);
    case Statistics::CRMS_FULL: return parts_by_width<T, Statistics::CRMS_FULL, false>(plan);
    case Statistics::ROW: break;  // extended
  }
  return {};
}

}  // namespace
}  // namespace cuda
}  // namespace onnxfold
