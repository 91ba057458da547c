// Decisions that a GPU alone can judge. Each has another way, which `make cuda-variants` builds as a
// driver of its own: benchmarks/gpu_kernels.py times them beside the one that was chosen.
#pragma once

namespace onnxfold {
namespace cuda {

enum class Variant {
  CHOSEN,
  TWO_PASSES,       // LayerNorm never takes its statistics from one pass
  LATE_CONSTANTS,   // scale and bias are loaded where they are used, after the sums of the row
  PASSING_LOADS,    // x and residual are not kept in the first level cache, where scale and bias are
  PLAIN_STORES,     // by the instruction of any store, not by that which writes back at each level
  STREAMED_STORES,  // first to be evicted
};

#if !defined(ONNXFOLD_VARIANT)
#define ONNXFOLD_VARIANT CHOSEN
#endif
constexpr Variant kVariant = Variant::ONNXFOLD_VARIANT;

}  // namespace cuda
}  // namespace onnxfold
