// An op bound to one device and element type, as ONNX Runtime sees it.
#pragma once

#include "onnxfold/launch.h"
#include "onnxfold/ort_abi.h"

namespace onnxfold {

struct BoundOp : OrtCustomOp {
  const OrtApi* api;
  const Op* op;
  const Backend* backend;
  ElementType type;
};

size_t input_count(const Op& op);

// The callbacks that read attributes, shapes and tensors.
OrtStatus* create_kernel(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel);
OrtStatus* compute(void* kernel, OrtKernelContext* context);
void destroy_kernel(void* kernel);
OrtStatus* infer_shapes(const OrtCustomOp* op, OrtShapeInferContext* context);

}  // namespace onnxfold
