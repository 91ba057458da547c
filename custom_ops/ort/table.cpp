#include "onnxfold/ops.h"

namespace onnxfold {

const Op ops[] = {
#define ONNXFOLD_OP(name, statistics, residual, linear_bias, affine, with_sum, row_scale,       \
                    row_epsilon, activation, output)                                            \
  {#name,           Statistics::statistics, residual != 0,    linear_bias != 0,                 \
   Affine::affine,  with_sum != 0,          row_scale != 0,   row_epsilon != 0,                 \
   Activation::activation, Output::output},
#include "onnxfold/ops.def"
#undef ONNXFOLD_OP
};

const size_t op_count = sizeof(ops) / sizeof(ops[0]);

// The same table as text, which onnxfold/runtime/library.py finds in the file and compares with its own
// before it registers the library. A version there is the version of the domain.
extern "C" __attribute__((used)) const char onnxfold_ops_table[] =
    "onnxfold-ops version 1\n"
#define ONNXFOLD_OP(name, statistics, residual, linear_bias, affine, with_sum, row_scale,       \
                    row_epsilon, activation, output)                                            \
  #name " " #statistics " " #residual " " #linear_bias " " #affine " " #with_sum " " #row_scale \
        " " #row_epsilon " " #activation " " #output "\n"
#include "onnxfold/ops.def"
#undef ONNXFOLD_OP
    ;

}  // namespace onnxfold
