#include "kernels.cuh"

namespace onnxfold {
namespace cuda {

KernelFunction find_brain(const Op& op, const Plan& plan) { return find_kernel<Brain>(op, plan); }
PartKernels find_parts_brain(const Op& op, const Plan& plan) { return find_parts<Brain>(op, plan); }

}  // namespace cuda
}  // namespace onnxfold
