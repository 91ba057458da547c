// The kernel that a plan asks for, by element type: each is compiled in a file of its own.
#pragma once

#include "algorithm.h"
#include "plan.h"

namespace onnxfold {
namespace cuda {

// inverse: see inverse_size.
using KernelFunction = void (*)(Arguments arguments, float inverse);
using PartKernel = void (*)(Arguments arguments, float inverse, Parts parts);

KernelFunction find_float(const Op& op, const Plan& plan);
KernelFunction find_half(const Op& op, const Plan& plan);
KernelFunction find_bfloat16(const Op& op, const Plan& plan);

// Where blocks share a row: one launch measures the parts, and the next one writes them.
struct PartKernels {
  PartKernel measure;
  PartKernel normalise;
};

PartKernels find_parts_float(const Op& op, const Plan& plan);
PartKernels find_parts_half(const Op& op, const Plan& plan);
PartKernels find_parts_bfloat16(const Op& op, const Plan& plan);

}  // namespace cuda
}  // namespace onnxfold
