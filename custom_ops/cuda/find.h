// The kernel that a plan asks for, by element type: each is compiled in a file of its own.
#pragma once

#include "plan.h"

namespace onnxfold {
namespace cuda {

// inverse: see inverse_size.
using KernelFunction = void (*)(Arguments arguments, float inverse);

KernelFunction find_float(const Op& op, const Plan& plan);
KernelFunction find_half(const Op& op, const Plan& plan);
KernelFunction find_brain(const Op& op, const Plan& plan);

}  // namespace cuda
}  // namespace onnxfold
