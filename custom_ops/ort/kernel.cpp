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

constexpr size_t kMaxInputs = 5;

struct Kernel {
  const BoundOp* bound;
  int64_t axis;
  float epsilon;
  // Elements of the inputs that are constants of the model, else -1: ONNX Runtime allocates memory
  // to tell a shape, which for a small tensor takes as long as the norm.
  int64_t constant_counts[kMaxInputs];
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

OrtStatus* count_elements(const OrtApi* api, const OrtValue* value, size_t* count) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ONNXFOLD_TRY(api->GetTensorTypeAndShape(value, &info));
  OrtStatus* status = api->GetTensorShapeElementCount(info, count);
  api->ReleaseTensorTypeAndShapeInfo(info);
  return status;
}

// Reads the inputs of one call in the order of the signature.
struct Inputs {
  const Kernel& kernel;
  OrtKernelContext* context;
  size_t next;

  OrtStatus* tensor(const void** data, Shape& shape) {
    const OrtApi* api = kernel.bound->api;
    const OrtValue* value = nullptr;
    ONNXFOLD_TRY(open(&value, data));
    OrtTensorTypeAndShapeInfo* info = nullptr;
    ONNXFOLD_TRY(api->GetTensorTypeAndShape(value, &info));
    OrtStatus* status = read_shape(api, *kernel.bound->op, info, shape);
    api->ReleaseTensorTypeAndShapeInfo(info);
    return status;
  }

  OrtStatus* vector(const void** data, size_t* count) {
    const int64_t known = kernel.constant_counts[next];
    const OrtValue* value = nullptr;
    ONNXFOLD_TRY(open(&value, data));
    if (known < 0) return count_elements(kernel.bound->api, value, count);
    *count = static_cast<size_t>(known);
    return nullptr;
  }

 private:
  OrtStatus* open(const OrtValue** value, const void** data) {
    const OrtApi* api = kernel.bound->api;
    ONNXFOLD_TRY(api->KernelContext_GetInput(context, next++, value));
    if (*value == nullptr) return refuse(api, *kernel.bound->op, "an input is missing");
    void* address = nullptr;
    ONNXFOLD_TRY(api->GetTensorMutableData(const_cast<OrtValue*>(*value), &address));
    *data = address;
    return nullptr;
  }
};

OrtStatus* read_inputs(const Kernel& kernel, OrtKernelContext* context, Shape& x,
                       Arguments& arguments) {
  const Op& op = *kernel.bound->op;
  const OrtApi* api = kernel.bound->api;
  Inputs inputs = {kernel, context, 0};
  size_t count = 0;
  ONNXFOLD_TRY(inputs.tensor(&arguments.x, x));
  ONNXFOLD_TRY(refuse(api, op, check_input(kernel.axis, x, arguments)));
  if (op.residual) {
    Shape residual;
    ONNXFOLD_TRY(inputs.tensor(&arguments.residual, residual));
    ONNXFOLD_TRY(refuse(api, op, check_residual(x, residual)));
  }
  if (op.linear_bias) {
    ONNXFOLD_TRY(inputs.vector(&arguments.linear_bias, &count));
    ONNXFOLD_TRY(refuse(api, op, check_linear_bias(arguments, count)));
  }
  if (op.affine != Affine::NONE) {
    ONNXFOLD_TRY(inputs.vector(&arguments.scale, &count));
    ONNXFOLD_TRY(refuse(api, op, check_scale(op, arguments, count)));
  }
  if (op.affine == Affine::AFFINE) {
    ONNXFOLD_TRY(inputs.vector(&arguments.bias, &count));
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

// Writes the type and dimensions of Y, and of Sum, which no op has whose Y is longer than X.
// ONNX Runtime takes an unknown dimension without a name for the number -1 and then refuses models
// that reshape by it: such a dimension gets a name, of its own since equal names mean equal sizes.
OrtStatus* describe_output(const OrtApi* api, const Op& op, const OrtTensorTypeAndShapeInfo* x,
                           OrtTensorTypeAndShapeInfo* y) {
  static std::atomic<uint64_t> named{0};
  Shape shape;
  const char* names[Shape::kMaxRank];
  char own_names[Shape::kMaxRank][40];
  // The type is that of X: ONNX Runtime asks the first op of a name, whatever its type, for all.
  int type = 0;
  ONNXFOLD_TRY(api->GetTensorElementType(x, &type));
  ONNXFOLD_TRY(read_shape(api, op, x, shape));
  for (const char*& name : names) name = "";
  ONNXFOLD_TRY(api->GetSymbolicDimensions(x, names, shape.rank));
  const bool unknown_size = shape.rank > 0 && shape.dims[shape.rank - 1] < 0;
  if (!unknown_size) {
    output_shape(op, shape);
  } else if (op.statistics == Statistics::CRMS_FULL) {
    names[shape.rank - 1] = "";
  }
  for (size_t axis = 0; axis < shape.rank; ++axis) {
    if (shape.dims[axis] >= 0 || names[axis][0] != '\0') continue;
    snprintf(own_names[axis], sizeof(own_names[axis]), "onnxfold_%llu",
             static_cast<unsigned long long>(named.fetch_add(1)));
    names[axis] = own_names[axis];
  }
  ONNXFOLD_TRY(api->SetTensorElementType(y, type));
  ONNXFOLD_TRY(api->SetDimensions(y, shape.dims, shape.rank));
  return api->SetSymbolicDimensions(y, names, shape.rank);
}

OrtStatus* count_constant(const OrtApi* api, const OrtKernelInfo* info, size_t input,
                          int64_t& count) {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  ONNXFOLD_TRY(api->KernelInfoGetConstantInput_tensor(info, input, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return nullptr;
  size_t elements = 0;
  ONNXFOLD_TRY(count_elements(api, value, &elements));
  count = static_cast<int64_t>(elements);
  return nullptr;
}

struct Call {
  const OrtApi* api;
  const Op& op;
  OrtKernelContext* context;
};

Failure* parallel_for(void* context, Executor::Task task, size_t count, void* data) {
  const Call& call = *static_cast<const Call*>(context);
  OrtStatus* status = call.api->KernelContext_ParallelFor(call.context, task, count, 0, data);
  return reinterpret_cast<Failure*>(status);
}

Failure* stream_of(void* context, void** stream) {
  const Call& call = *static_cast<const Call*>(context);
  OrtStatus* status = call.api->KernelContext_GetGPUComputeStream(call.context, stream);
  return reinterpret_cast<Failure*>(status);
}

OrtStatus* read_device(const Call& call, int* device) {
  const OrtValue* x = nullptr;
  const OrtMemoryInfo* memory = nullptr;
  ONNXFOLD_TRY(call.api->KernelContext_GetInput(call.context, 0, &x));
  ONNXFOLD_TRY(call.api->GetTensorMemoryInfo(x, &memory));
  return call.api->MemoryInfoGetId(memory, device);
}

Failure* device_of(void* context, int* device) {
  return reinterpret_cast<Failure*>(read_device(*static_cast<const Call*>(context), device));
}

Failure* fail(void* context, const char* why) {
  const Call& call = *static_cast<const Call*>(context);
  char message[256];
  snprintf(message, sizeof(message), "onnxfold %s: %s", call.op.name, why);
  return reinterpret_cast<Failure*>(call.api->CreateStatus(ORT_FAIL, message));
}

}  // namespace

OrtStatus* create_kernel(const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) {
  const BoundOp* bound = static_cast<const BoundOp*>(self);
  const Op& op = *bound->op;
  const bool last_only =
      op.statistics == Statistics::CRMS || op.statistics == Statistics::CRMS_FULL;
  Kernel read = {bound, -1, 0.0f, {-1, -1, -1, -1, -1}};
  if (!last_only) {
    OrtStatus* cause = api->KernelInfoGetAttribute_int64(info, "axis", &read.axis);
    ONNXFOLD_TRY(missing_attribute(api, op, "axis", cause));
  }
  if (op.statistics != Statistics::CENTER) {
    OrtStatus* cause = api->KernelInfoGetAttribute_float(info, "epsilon", &read.epsilon);
    ONNXFOLD_TRY(missing_attribute(api, op, "epsilon", cause));
  }
  ONNXFOLD_TRY(refuse(api, op, check_attributes(op, read.axis, read.epsilon)));
  for (size_t input = 0; input < input_count(op); ++input) {
    ONNXFOLD_TRY(count_constant(api, info, input, read.constant_counts[input]));
  }
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
  Call call = {bound.api, *bound.op, context};
  const Executor executor = {parallel_for, stream_of, device_of, fail, &call};
  Failure* failure = bound.backend->launch(*bound.op, bound.type, arguments, executor);
  return reinterpret_cast<OrtStatus*>(failure);
}

OrtStatus* infer_shapes(const OrtCustomOp* self, OrtShapeInferContext* context) {
  const BoundOp* bound = static_cast<const BoundOp*>(self);
  const OrtApi* api = bound->api;
  const Op& op = *bound->op;
  OrtTensorTypeAndShapeInfo* x = nullptr;
  ONNXFOLD_TRY(api->ShapeInferContext_GetInputTypeShape(context, 0, &x));
  size_t rank = 0;
  ONNXFOLD_TRY(api->GetDimensionsCount(x, &rank));
  if (rank == 0) return nullptr;  // not a scalar, which has no axis: the rank is unknown
  OrtTensorTypeAndShapeInfo* y = nullptr;
  ONNXFOLD_TRY(api->CreateTensorTypeAndShapeInfo(&y));
  OrtStatus* status = describe_output(api, op, x, y);
  if (status == nullptr) status = api->ShapeInferContext_SetOutputTypeShape(context, 0, y);
  if (status == nullptr && op.with_sum)
    status = api->ShapeInferContext_SetOutputTypeShape(context, 1, y);
  api->ReleaseTensorTypeAndShapeInfo(y);
  return status;
}

}  // namespace onnxfold
