#include "kernel.h"

#include <stdio.h>

#include <atomic>
#include <new>

#include "onnxfold/check.h"

#define ONNXFOLD_TRY(expression)                            \
  do {                                                      \
    if (OrtStatus* status = (expression)) return status;    \
  } while (false)

namespace onnxfold {

namespace {

struct Kernel {
  const BoundOp* bound;
  int64_t axis;
  float epsilon;
};

OrtStatus* refuse(const OrtApi* api, const Op& op, const char* why) {
  if (why == nullptr) return nullptr;
  char message[256];
  snprintf(message, sizeof(message), "onnxfold %s: %s", op.name, why);
  return api->CreateStatus(ORT_INVALID_ARGUMENT, message);
}

OrtStatus* missing_attribute(const OrtApi* api, const Op& op, const char* name, OrtStatus* cause) {
  if (cause == nullptr) return nullptr;
  api->ReleaseStatus(cause);
  char why[64];
  snprintf(why, sizeof(why), "attribute %s is missing or has another type", name);
  return refuse(api, op, why);
}

OrtStatus* read_shape(const OrtApi* api, const Op& op, const OrtTensorTypeAndShapeInfo* info,
                      Shape& shape) {
  ONNXFOLD_TRY(api->GetDimensionsCount(info, &shape.rank));
  if (shape.rank > Shape::kMaxRank) return refuse(api, op, "a tensor has more than 16 axes");
  return api->GetDimensions(info, shape.dims, shape.rank);
}

// Reads the inputs of one call in the order of the signature.
struct Inputs {
  const OrtApi* api;
  const Op& op;
  OrtKernelContext* context;
  size_t next;

  OrtStatus* tensor(const void** data, Shape* shape, size_t* count) {
    const OrtValue* value = nullptr;
    ONNXFOLD_TRY(api->KernelContext_GetInput(context, next++, &value));
    if (value == nullptr) return refuse(api, op, "an input is missing");
    OrtTensorTypeAndShapeInfo* info = nullptr;
    ONNXFOLD_TRY(api->GetTensorTypeAndShape(value, &info));
    OrtStatus* status = shape != nullptr ? read_shape(api, op, info, *shape)
                                         : api->GetTensorShapeElementCount(info, count);
    api->ReleaseTensorTypeAndShapeInfo(info);
    if (status != nullptr) return status;
    void* address = nullptr;
    ONNXFOLD_TRY(api->GetTensorMutableData(const_cast<OrtValue*>(value), &address));
    *data = address;
    return nullptr;
  }
};

OrtStatus* read_inputs(const Kernel& kernel, OrtKernelContext* context, Shape& x,
                       Arguments& arguments) {
  const Op& op = *kernel.bound->op;
  const OrtApi* api = kernel.bound->api;
  Inputs inputs = {api, op, context, 0};
  size_t count = 0;
  ONNXFOLD_TRY(inputs.tensor(&arguments.x, &x, nullptr));
  ONNXFOLD_TRY(refuse(api, op, check_input(kernel.axis, x, arguments)));
  if (op.residual) {
    Shape residual;
    ONNXFOLD_TRY(inputs.tensor(&arguments.residual, &residual, nullptr));
    ONNXFOLD_TRY(refuse(api, op, check_residual(x, residual)));
  }
  if (op.linear_bias) {
    ONNXFOLD_TRY(inputs.tensor(&arguments.linear_bias, nullptr, &count));
    ONNXFOLD_TRY(refuse(api, op, check_linear_bias(arguments, count)));
  }
  if (op.affine != Affine::NONE) {
    ONNXFOLD_TRY(inputs.tensor(&arguments.scale, nullptr, &count));
    ONNXFOLD_TRY(refuse(api, op, check_scale(op, arguments, count)));
  }
  if (op.affine == Affine::AFFINE) {
    ONNXFOLD_TRY(inputs.tensor(&arguments.bias, nullptr, &count));
    ONNXFOLD_TRY(refuse(api, op, check_bias(op, arguments, count)));
  }
  return nullptr;
}

OrtStatus* open_output(const OrtApi* api, OrtKernelContext* context, size_t index,
                       const Shape& shape, void** data) {
  OrtValue* value = nullptr;
  ONNXFOLD_TRY(api->KernelContext_GetOutput(context, index, shape.dims, shape.rank, &value));
  return api->GetTensorMutableData(value, data);
}

struct Call {
  const OrtApi* api;
  OrtKernelContext* context;
};

Failure* parallel_for(void* context, Executor::Task task, size_t count, void* data) {
  const Call& call = *static_cast<const Call*>(context);
  OrtStatus* status = call.api->KernelContext_ParallelFor(call.context, task, count, 0, data);
  return reinterpret_cast<Failure*>(status);
}

}  // namespace

OrtStatus* create_kernel(const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) {
  const BoundOp* bound = static_cast<const BoundOp*>(self);
  const Op& op = *bound->op;
  const bool last_only =
      op.statistics == Statistics::CRMS || op.statistics == Statistics::CRMS_FULL;
  Kernel read = {bound, -1, 0.0f};
  if (!last_only) {
    OrtStatus* cause = api->KernelInfoGetAttribute_int64(info, "axis", &read.axis);
    ONNXFOLD_TRY(missing_attribute(api, op, "axis", cause));
  }
  if (op.statistics != Statistics::CENTER) {
    OrtStatus* cause = api->KernelInfoGetAttribute_float(info, "epsilon", &read.epsilon);
    ONNXFOLD_TRY(missing_attribute(api, op, "epsilon", cause));
  }
  ONNXFOLD_TRY(refuse(api, op, check_attributes(op, read.axis, read.epsilon)));
  *kernel = new (std::nothrow) Kernel(read);
  return *kernel != nullptr ? nullptr : refuse(api, op, "out of memory");
}

void destroy_kernel(void* kernel) { delete static_cast<Kernel*>(kernel); }

OrtStatus* compute(void* self, OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  const BoundOp& bound = *kernel.bound;
  Shape shape;
  Arguments arguments = {};
  arguments.epsilon = kernel.epsilon;
  ONNXFOLD_TRY(read_inputs(kernel, context, shape, arguments));
  if (bound.op->with_sum)
    ONNXFOLD_TRY(open_output(bound.api, context, 1, shape, &arguments.sum));
  output_shape(*bound.op, shape);
  ONNXFOLD_TRY(open_output(bound.api, context, 0, shape, &arguments.y));
  Call call = {bound.api, context};
  Failure* failure = bound.backend->launch(bound.rows, arguments, {parallel_for, &call});
  return reinterpret_cast<OrtStatus*>(failure);
}

namespace {

// What is known of a tensor's shape before it exists; a free dimension is -1.
struct StaticShape {
  Shape shape;
  const char* names[Shape::kMaxRank];
};

OrtStatus* set_output(const OrtApi* api, OrtShapeInferContext* context, size_t index, int type,
                      const StaticShape& known) {
  // ONNX Runtime takes a free dimension without a name for one of size -1, which Reshape and others
  // behind it refuse: such a one gets a name that nothing else has.
  static std::atomic<unsigned long long> count{0};
  char fresh[Shape::kMaxRank][40];
  const char* names[Shape::kMaxRank];
  for (size_t i = 0; i < known.shape.rank; ++i) {
    names[i] = known.names[i];
    if (known.shape.dims[i] >= 0 || names[i][0] != '\0') continue;
    snprintf(fresh[i], sizeof(fresh[i]), "onnxfold_%llu", count.fetch_add(1));
    names[i] = fresh[i];
  }
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ONNXFOLD_TRY(api->CreateTensorTypeAndShapeInfo(&info));
  OrtStatus* status = api->SetTensorElementType(info, type);
  if (status == nullptr) status = api->SetDimensions(info, known.shape.dims, known.shape.rank);
  if (status == nullptr) status = api->SetSymbolicDimensions(info, names, known.shape.rank);
  if (status == nullptr) status = api->ShapeInferContext_SetOutputTypeShape(context, index, info);
  api->ReleaseTensorTypeAndShapeInfo(info);
  return status;
}

}  // namespace

OrtStatus* infer_shapes(const OrtCustomOp* self, OrtShapeInferContext* context) {
  const BoundOp* bound = static_cast<const BoundOp*>(self);
  const OrtApi* api = bound->api;
  const Op& op = *bound->op;
  OrtTensorTypeAndShapeInfo* x = nullptr;
  ONNXFOLD_TRY(api->ShapeInferContext_GetInputTypeShape(context, 0, &x));
  // The type is that of X: ONNX Runtime asks the first op of a name, whatever its type, for all.
  int type = 0;
  StaticShape known;
  ONNXFOLD_TRY(api->GetTensorElementType(x, &type));
  ONNXFOLD_TRY(read_shape(api, op, x, known.shape));
  if (known.shape.rank == 0) return nullptr;  // a norm has an axis: nothing is known
  ONNXFOLD_TRY(api->GetSymbolicDimensions(x, known.names, known.shape.rank));
  if (op.with_sum) ONNXFOLD_TRY(set_output(api, context, 1, type, known));
  if (op.statistics == Statistics::CRMS_FULL) {
    // One element more on the last axis, whose name is then another.
    output_shape(op, known.shape);
    known.names[known.shape.rank - 1] = "";
  }
  return set_output(api, context, 0, type, known);
}

}  // namespace onnxfold
