#include "kernels.cuh"

namespace onnxfold {
namespace cuda {

KernelFunction find_half(const Op& op, const Plan& plan) { return find_kernel<Half>(op, plan); }
PartKernels find_parts_half(const Op& op, const Plan& plan) { return find_parts<Half>(op, plan); }

}  // namespace cuda
}  // namespace onnxfold
