// An op bound to one device and element type, as ONNX Runtime sees it.
#pragma once

#include "onnxfold/launch.h"
#include "onnxfold/ort_abi.h"

namespace onnxfold {

struct BoundOp : OrtCustomOp {
  const OrtApi* api;
  bool lends_shapes;  // the runtime has GetTensorElementTypeAndShapeDataReference
  const Op* op;
  const Backend* backend;
  ElementType type;
  Code code;  // of Y, where it is quantised
};

// What an op may take, in the order of its inputs.
enum class Input {
  X, RESIDUAL, LINEAR_BIAS, ROW_SCALE, ROW_EPSILON, SCALE, BIAS, Y_SCALE, Y_ZERO_POINT
};
constexpr size_t kMaxInputs = 9;

struct InputList {
  Input at[kMaxInputs];
  size_t count;
};

InputList inputs_of(const Op& op);
bool quantised(const Op& op);
size_t output_count(const Op& op);

// The callbacks that read attributes, shapes and tensors.
OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel);
OrtStatus* compute(void* kernel, OrtKernelContext* context);
void destroy_kernel(void* kernel);
OrtStatus* infer_shapes(const OrtCustomOp* op, OrtShapeInferContext* context);

}  // namespace onnxfold
