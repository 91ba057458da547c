#include "kernels.cuh"

namespace onnxfold {
namespace cuda {

KernelFunction find_float(const Op& op, const Plan& plan) { return find_kernel<float>(op, plan); }

}  // namespace cuda
}  // namespace onnxfold
