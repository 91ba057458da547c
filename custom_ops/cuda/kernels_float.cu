#include "kernels.cuh"

namespace onnxfold {
namespace cuda {

KernelFunction find_float(const Op& op, const Plan& plan) { return find_kernel<float>(op, plan); }
PartKernels find_parts_float(const Op& op, const Plan& plan) { return find_parts<float>(op, plan); }

}  // namespace cuda
}  // namespace onnxfold
