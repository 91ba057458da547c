// The CUDA kernels on the host: the templates that nvcc compiles, with a group whose threads take
// turns. What is not emulated is the hardware: shuffles, shared memory, barriers, launches.
#pragma once

#include "../../custom_ops/cuda/find.h"

namespace onnxfold {
namespace cuda {

void emulate_float(const Op& op, const Plan& plan, const Arguments& arguments);
void emulate_half(const Op& op, const Plan& plan, const Arguments& arguments);
void emulate_bfloat16(const Op& op, const Plan& plan, const Arguments& arguments);

// The launches by which blocks share a row.
enum class Stage { MEASURE, NORMALISE };
void emulate_parts_float(const Op& op, const Plan& plan, const Arguments& arguments,
                         const Parts& parts, Stage stage);
void emulate_parts_half(const Op& op, const Plan& plan, const Arguments& arguments,
                        const Parts& parts, Stage stage);
void emulate_parts_bfloat16(const Op& op, const Plan& plan, const Arguments& arguments,
                         const Parts& parts, Stage stage);
void emulate_parts(const Op& op, ElementType type, const Plan& plan, const Arguments& arguments,
                   const Parts& parts, Stage stage);

// Where a row has one block.
void emulate_planned(const Op& op, ElementType type, const Plan& plan, const Arguments& arguments);

// What cuda::run does, for a device with so many multiprocessors.
void emulate(const Op& op, ElementType type, const Arguments& arguments, int multiprocessors);

}  // namespace cuda
}  // namespace onnxfold
