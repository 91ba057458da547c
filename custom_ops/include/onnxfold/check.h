// The check layer: attributes and shapes, before anything is computed. Each function gives null, or
// the end of a sentence that begins with the op's name.
#pragma once

#include "onnxfold/kernels.h"

namespace onnxfold {

struct Shape {
  static constexpr size_t kMaxRank = 16;
  int64_t dims[kMaxRank];
  size_t rank;
};

// axis: the first normalised axis, counted from the end (-k); epsilon: finite, not negative.
const char* check_attributes(const Op& op, int64_t axis, float epsilon);

// Splits the shape of X into arguments.rows and arguments.size.
const char* check_input(int64_t axis, const Shape& x, Arguments& arguments);

const char* check_residual(const Shape& x, const Shape& residual);
const char* check_linear_bias(const Arguments& arguments, size_t count);
const char* check_scale(const Op& op, const Arguments& arguments, size_t count);
const char* check_bias(const Op& op, const Arguments& arguments, size_t count);

// The shape of Y; unknown dims (negative) stay unknown.
void output_shape(const Op& op, Shape& shape);

}  // namespace onnxfold
