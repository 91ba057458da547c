// The compute layer's interface: plain pointers and sizes, no type of any runtime.
// Only plain data stands here: an inline function would be compiled once per instruction set, and
// the linker might keep the copy that the machine at hand cannot run.
#pragma once

#include <cstddef>
#include <cstdint>

namespace onnxfold {

enum class Statistics { RMS, LAYER, CENTER, CRMS, CRMS_FULL, ROW };
enum class Affine { NONE, SCALE, AFFINE, BIAS };
enum class Activation { NONE, RELU, GELU, GELU_TANH, SILU };
// What y is: the norm, one number for each row, or quantised, by a scale that is given or of its row.
enum class Output { NORM, SCALE, QUANTIZED, QUANTIZED_ROWS };
// The element type of a y that is quantised; FLOAT8 is E4M3FN.
enum class Code { NONE, INT8, UINT8, FLOAT8 };
enum class ElementType { FLOAT, FLOAT16, BFLOAT16 };

// One row of ops.def; the formulas are at the head of onnxfold/operators/functions.py.
struct Op {
  const char* name;
  Statistics statistics;
  bool residual;
  bool linear_bias;
  Affine affine;
  bool with_sum;
  bool row_scale;
  bool row_epsilon;
  Activation activation;
  Output output;
};

// Tensors of one element type. x, residual, sum: [rows, size]; y: [rows, size], or
// [rows, size + 1] for CRMS_FULL; scale, bias: a row of y; linear_bias: a row of x.
// y and sum may each be x or residual, whole; nothing else may overlap. What the op does not have
// is null. row_scale, row_epsilon: one number for each row. A quantised y has the type `code`, as
// zero_point has, and its steps are y_scale, an element, or y_scales, one for each row, to be written:
// max(max|y| / levels, least). row_scales: what is written where the op gives scales alone, no y.
struct Arguments {
  const void* x;
  const void* residual;
  const void* linear_bias;
  const void* scale;
  const void* bias;
  void* y;
  void* sum;
  int64_t rows;
  int64_t size;
  float epsilon;
  Activation activation;
  Code code;
  float levels;
  float least;
  const float* row_scale;
  const float* row_epsilon;
  const void* y_scale;
  const void* zero_point;
  void* y_scales;
  float* row_scales;
};

// Computes rows [begin, end).
using RowsFunction = void (*)(const Arguments&, int64_t begin, int64_t end);

// The kernel for this machine's instruction set; ONNXFOLD_ISA=v2|v3|v4 asks for a lower one.
RowsFunction cpu_rows(const Op& op, ElementType type);

}  // namespace onnxfold
