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

// axis: the first normalised axis, counted from the end (-k); epsilon, least: finite, not negative;
// levels: finite, positive.
const char* check_attributes(const Op& op, int64_t axis, const Arguments& arguments);

// Splits the shape of X into arguments.rows and arguments.size.
const char* check_input(int64_t axis, const Shape& x, Arguments& arguments);

const char* check_residual(const Shape& x, const Shape& residual);
const char* check_linear_bias(const Arguments& arguments, size_t count);
const char* check_scale(const Op& op, const Arguments& arguments, size_t count);
const char* check_bias(const Op& op, const Arguments& arguments, size_t count);
// row_scale, row_epsilon.
const char* check_rows(const Arguments& arguments, size_t count);
// y_scale, y_zero_point.
const char* check_single(size_t count);

// The shape of Y; unknown dims (negative) stay unknown.
void output_shape(const Op& op, Shape& shape);
// The shape of a tensor with one number for each row of a tensor of this shape.
void rows_shape(int64_t axis, Shape& shape);

}  // namespace onnxfold
