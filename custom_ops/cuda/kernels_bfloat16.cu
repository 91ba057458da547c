#include "kernels.cuh"

namespace onnxfold {
namespace cuda {

KernelFunction find_bfloat16(const Op& op, const Plan& plan) {
  return find_kernel<BFloat16>(op, plan);
}
PartKernels find_parts_bfloat16(const Op& op, const Plan& plan) {
  return find_parts<BFloat16>(op, plan);
}

}  // namespace cuda
}  // namespace onnxfold
