#include "onnxfold/check.h"

#include <math.h>

namespace onnxfold {

namespace {

bool full(const Op& op) { return op.statistics == Statistics::CRMS_FULL; }

size_t row_of_y(const Op& op, const Arguments& arguments) {
  return static_cast<size_t>(arguments.size) + (full(op) ? 1 : 0);
}

}  // namespace

const char* check_attributes(const Op& op, int64_t axis, const Arguments& a) {
  const bool last_only = op.statistics == Statistics::CRMS || full(op);
  if (axis >= 0 || axis < -static_cast<int64_t>(Shape::kMaxRank))
    return "attribute axis must count from the end, -1 to -16";
  if (last_only && axis != -1) return "works over the last axis only";
  if (!(a.epsilon >= 0) || isinf(a.epsilon))
    return "attribute epsilon must be finite and not negative";
  if (op.output != Output::QUANTIZED_ROWS) return nullptr;
  if (!(a.levels > 0) || isinf(a.levels)) return "attribute levels must be finite and positive";
  if (!(a.least >= 0) || isinf(a.least)) return "attribute least must be finite and not negative";
  return nullptr;
}

const char* check_input(int64_t axis, const Shape& x, Arguments& arguments) {
  const size_t normalised = static_cast<size_t>(-axis);
  if (normalised > x.rank) return "X has fewer axes than are normalised";
  arguments.rows = arguments.size = 1;
  for (size_t i = 0; i < x.rank; ++i) {
    int64_t& part = i < x.rank - normalised ? arguments.rows : arguments.size;
    part *= x.dims[i];
  }
  return nullptr;
}

const char* check_residual(const Shape& x, const Shape& residual) {
  bool same = x.rank == residual.rank;
  for (size_t i = 0; same && i < x.rank; ++i) same = x.dims[i] == residual.dims[i];
  return same ? nullptr : "residual must have the shape of X";
}

const char* check_linear_bias(const Arguments& arguments, size_t count) {
  const bool fits = count == static_cast<size_t>(arguments.size);
  return fits ? nullptr : "linear_bias must have one element for each of a row of X";
}

const char* check_scale(const Op& op, const Arguments& arguments, size_t count) {
  const bool fits = count == row_of_y(op, arguments);
  return fits ? nullptr : "scale must have one element for each of a row of Y";
}

const char* check_bias(const Op& op, const Arguments& arguments, size_t count) {
  const bool fits = count == row_of_y(op, arguments);
  return fits ? nullptr : "bias must have one element for each of a row of Y";
}

const char* check_rows(const Arguments& arguments, size_t count) {
  const bool fits = count == static_cast<size_t>(arguments.rows);
  return fits ? nullptr : "row_scale and row_epsilon must have one element for each row of X";
}

const char* check_single(size_t count) {
  return count == 1 ? nullptr : "y_scale and y_zero_point must have one element";
}

void output_shape(const Op& op, Shape& shape) {
  if (!full(op) || shape.rank == 0) return;
  int64_t& last = shape.dims[shape.rank - 1];
  if (last >= 0) last += 1;
}

void rows_shape(int64_t axis, Shape& shape) {
  for (int64_t i = 1; i <= -axis && i <= static_cast<int64_t>(shape.rank); ++i)
    shape.dims[shape.rank - static_cast<size_t>(i)] = 1;
}

}  // namespace onnxfold
