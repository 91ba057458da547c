#include "kernel.h"

#include <stdio.h>

#include <atomic>

#include "onnxfold/check.h"
#include "onnxfold/memory.h"

#define ONNXFOLD_TRY(expression)                            \
  do {                                                      \
    if (OrtStatus* status = (expression)) return status;    \
  } while (false)

namespace onnxfold {

namespace {

struct Kernel {
  const BoundOp* bound;
  int64_t axis;
  Arguments attributes;  // the rest of it is empty
  // Elements of the inputs that are constants of the model, else -1: ONNX Runtime before 1.24 allocates
  // memory to tell a shape, which for a small tensor takes as long as the norm.
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

OrtStatus* refuse_rank(const OrtApi* api, const Op& op) {
  return refuse(api, op, "a tensor has more than 16 axes");
}

OrtStatus* read_shape(const OrtApi* api, const Op& op, const OrtTensorTypeAndShapeInfo* info,
                      Shape& shape) {
  ONNXFOLD_TRY(api->GetDimensionsCount(info, &shape.rank));
  if (shape.rank > Shape::kMaxRank) return refuse_rank(api, op);
  return api->GetDimensions(info, shape.dims, shape.rank);
}

OrtStatus* describe(const BoundOp& bound, const OrtValue* value, Shape& shape) {
  OrtTensorTypeAndShapeInfo* info = nullptr;
  ONNXFOLD_TRY(bound.api->GetTensorTypeAndShape(value, &info));
  OrtStatus* status = read_shape(bound.api, *bound.op, info, shape);
  bound.api->ReleaseTensorTypeAndShapeInfo(info);
  return status;
}

OrtStatus* shape_of(const BoundOp& bound, const OrtValue* value, Shape& shape) {
  if (!bound.lends_shapes) return describe(bound, value, shape);
  int type = 0;
  const int64_t* dims = nullptr;
  const OrtApi* api = bound.api;
  ONNXFOLD_TRY(api->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &shape.rank));
  if (shape.rank > Shape::kMaxRank) return refuse_rank(api, *bound.op);
  for (size_t axis = 0; axis < shape.rank; ++axis) shape.dims[axis] = dims[axis];
  return nullptr;
}

OrtStatus* count_elements(const BoundOp& bound, const OrtValue* value, size_t* count) {
  Shape shape;
  ONNXFOLD_TRY(shape_of(bound, value, shape));
  *count = 1;
  for (size_t axis = 0; axis < shape.rank; ++axis) *count *= static_cast<size_t>(shape.dims[axis]);
  return nullptr;
}

// Reads the inputs of one call in the order of the signature.
struct Inputs {
  const Kernel& kernel;
  OrtKernelContext* context;
  size_t next;

  OrtStatus* tensor(const void** data, Shape& shape) {
    const OrtValue* value = nullptr;
    ONNXFOLD_TRY(open(&value, data));
    return shape_of(*kernel.bound, value, shape);
  }

  OrtStatus* vector(const void** data, size_t* count) {
    const int64_t known = kernel.constant_counts[next];
    const OrtValue* value = nullptr;
    ONNXFOLD_TRY(open(&value, data));
    if (known < 0) return count_elements(*kernel.bound, value, count);
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

// How an operand of so many elements fits the arguments, and where its address goes.
struct Place {
  const void** data;
  const char* why;  // it does not fit, or null
};

Place place(const Op& op, Input input, Arguments& a, size_t count) {
  switch (input) {
    case Input::LINEAR_BIAS: return {&a.linear_bias, check_linear_bias(a, count)};
    case Input::ROW_SCALE:
      return {reinterpret_cast<const void**>(&a.row_scale), check_rows(a, count)};
    case Input::ROW_EPSILON:
      return {reinterpret_cast<const void**>(&a.row_epsilon), check_rows(a, count)};
    case Input::SCALE: return {&a.scale, check_scale(op, a, count)};
    case Input::BIAS: return {&a.bias, check_bias(op, a, count)};
    case Input::Y_SCALE: return {&a.y_scale, check_single(count)};
    default: return {&a.zero_point, check_single(count)};
  }
}

OrtStatus* read_inputs(const Kernel& kernel, OrtKernelContext* context, Shape& x,
                       Arguments& arguments) {
  const Op& op = *kernel.bound->op;
  const OrtApi* api = kernel.bound->api;
  Inputs inputs = {kernel, context, 0};
  ONNXFOLD_TRY(inputs.tensor(&arguments.x, x));
  ONNXFOLD_TRY(refuse(api, op, check_input(kernel.axis, x, arguments)));
  const InputList list = inputs_of(op);
  for (size_t i = 1; i < list.count; ++i) {
    if (list.at[i] == Input::RESIDUAL) {
      Shape residual;
      ONNXFOLD_TRY(inputs.tensor(&arguments.residual, residual));
      ONNXFOLD_TRY(refuse(api, op, check_residual(x, residual)));
      continue;
    }
    const void* data = nullptr;
    size_t count = 0;
    ONNXFOLD_TRY(inputs.vector(&data, &count));
    const Place found = place(op, list.at[i], arguments, count);
    ONNXFOLD_TRY(refuse(api, op, found.why));
    *found.data = data;
  }
  return nullptr;
}

OrtStatus* open_output(const OrtApi* api, OrtKernelContext* context, size_t index,
                       const Shape& shape, void** data) {
  OrtValue* value = nullptr;
  ONNXFOLD_TRY(api->KernelContext_GetOutput(context, index, shape.dims, shape.rank, &value));
  return api->GetTensorMutableData(value, data);
}

// What an output has of X, and what of its own.
struct Described {
  int type;      // 0: that of X
  int64_t axis;  // from which on dimensions are 1, counted from the end; 0: none are
  bool longer;   // by the element that a row of X lacks
};

// Writes the type and dimensions of an output.
// ONNX Runtime takes an unknown dimension without a name for the number -1 and then refuses models
// that reshape by it: such a dimension gets a name, of its own since equal names mean equal sizes.
OrtStatus* describe_output(const OrtApi* api, const Op& op, const OrtTensorTypeAndShapeInfo* x,
                           const Described& described, OrtTensorTypeAndShapeInfo* y) {
  static std::atomic<uint64_t> named{0};
  Shape shape;
  const char* names[Shape::kMaxRank];
  char own_names[Shape::kMaxRank][40];
  // The type is that of X: ONNX Runtime asks the first op of a name, whatever its type, for all.
  int type = described.type;
  if (type == 0) ONNXFOLD_TRY(api->GetTensorElementType(x, &type));
  ONNXFOLD_TRY(read_shape(api, op, x, shape));
  for (const char*& name : names) name = "";
  ONNXFOLD_TRY(api->GetSymbolicDimensions(x, names, shape.rank));
  rows_shape(described.axis, shape);
  const bool unknown_size = shape.rank > 0 && shape.dims[shape.rank - 1] < 0;
  if (described.longer && unknown_size) names[shape.rank - 1] = "";
  if (described.longer) output_shape(op, shape);
  for (size_t axis = 0; axis < shape.rank; ++axis) {
    if (shape.dims[axis] >= 0) names[axis] = "";
    if (shape.dims[axis] >= 0 || names[axis][0] != '\0') continue;
    snprintf(own_names[axis], sizeof(own_names[axis]), "onnxfold_%llu",
             static_cast<unsigned long long>(named.fetch_add(1)));
    names[axis] = own_names[axis];
  }
  ONNXFOLD_TRY(api->SetTensorElementType(y, type));
  ONNXFOLD_TRY(api->SetDimensions(y, shape.dims, shape.rank));
  return api->SetSymbolicDimensions(y, names, shape.rank);
}

OrtStatus* set_output(const OrtApi* api, const Op& op, OrtShapeInferContext* context, size_t index,
                      const OrtTensorTypeAndShapeInfo* x, const Described& described) {
  OrtTensorTypeAndShapeInfo* y = nullptr;
  ONNXFOLD_TRY(api->CreateTensorTypeAndShapeInfo(&y));
  OrtStatus* status = describe_output(api, op, x, described, y);
  if (status == nullptr) status = api->ShapeInferContext_SetOutputTypeShape(context, index, y);
  api->ReleaseTensorTypeAndShapeInfo(y);
  return status;
}

OrtStatus* inferred_axis(const OrtApi* api, const OrtShapeInferContext* context, int64_t* axis) {
  const OrtOpAttr* attribute = nullptr;
  size_t size = 0;
  ONNXFOLD_TRY(api->ShapeInferContext_GetAttribute(context, "axis", &attribute));
  return api->ReadOpAttr(attribute, ORT_OP_ATTR_INT, axis, sizeof(*axis), &size);
}

OrtStatus* type_of_codes(const OrtApi* api, const Op& op, const OrtShapeInferContext* context,
                         int* type) {
  OrtTensorTypeAndShapeInfo* zero_point = nullptr;
  const size_t last = inputs_of(op).count - 1;
  ONNXFOLD_TRY(api->ShapeInferContext_GetInputTypeShape(context, last, &zero_point));
  return api->GetTensorElementType(zero_point, type);
}

OrtStatus* count_constant(const BoundOp& bound, const OrtKernelInfo* info, size_t input,
                          int64_t& count) {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  ONNXFOLD_TRY(bound.api->KernelInfoGetConstantInput_tensor(info, input, &is_constant, &value));
  if (is_constant == 0 || value == nullptr) return nullptr;
  size_t elements = 0;
  ONNXFOLD_TRY(count_elements(bound, value, &elements));
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

InputList inputs_of(const Op& op) {
  const bool scale = op.affine == Affine::SCALE || op.affine == Affine::AFFINE;
  const bool bias = op.affine == Affine::AFFINE || op.affine == Affine::BIAS;
  const bool present[kMaxInputs] = {
      true, op.residual, op.linear_bias, op.row_scale, op.row_epsilon, scale, bias,
      op.output == Output::QUANTIZED, quantised(op)};
  InputList list = {};
  for (size_t i = 0; i < kMaxInputs; ++i)
    if (present[i]) list.at[list.count++] = static_cast<Input>(i);
  return list;
}

bool quantised(const Op& op) {
  return op.output == Output::QUANTIZED || op.output == Output::QUANTIZED_ROWS;
}

size_t output_count(const Op& op) {
  return 1 + (op.output == Output::QUANTIZED_ROWS ? 1 : 0) + (op.with_sum ? 1 : 0);
}

OrtStatus* create_kernel(const OrtCustomOp* self, const OrtApi* api, const OrtKernelInfo* info,
                         void** kernel) {
  const BoundOp* bound = static_cast<const BoundOp*>(self);
  const Op& op = *bound->op;
  const bool last_only =
      op.statistics == Statistics::CRMS || op.statistics == Statistics::CRMS_FULL;
  const bool no_epsilon = op.statistics == Statistics::CENTER ||
                          op.statistics == Statistics::ROW || op.row_epsilon;
  const bool rows = op.output == Output::QUANTIZED_ROWS;
  Kernel read = {bound, -1, {}, {}};
  for (int64_t& count : read.constant_counts) count = -1;
  Arguments& a = read.attributes;
  a.activation = op.activation;
  a.code = bound->code;
  if (!last_only) {
    OrtStatus* cause = api->KernelInfoGetAttribute_int64(info, "axis", &read.axis);
    ONNXFOLD_TRY(missing_attribute(api, op, "axis", cause));
  }
  const struct {
    const char* name;
    bool read;
    float* value;
  } attributes[] = {
      {"epsilon", !no_epsilon, &a.epsilon}, {"levels", rows, &a.levels}, {"least", rows, &a.least}};
  for (const auto& attribute : attributes) {
    if (!attribute.read) continue;
    OrtStatus* cause = api->KernelInfoGetAttribute_float(info, attribute.name, attribute.value);
    ONNXFOLD_TRY(missing_attribute(api, op, attribute.name, cause));
  }
  ONNXFOLD_TRY(refuse(api, op, check_attributes(op, read.axis, a)));
  for (size_t input = 0; input < inputs_of(op).count; ++input) {
    ONNXFOLD_TRY(count_constant(*bound, info, input, read.constant_counts[input]));
  }
  *kernel = copy_to_heap(read);
  return *kernel != nullptr ? nullptr : refuse(api, op, "out of memory");
}

void destroy_kernel(void* kernel) { free(kernel); }

OrtStatus* compute(void* self, OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(self);
  const BoundOp& bound = *kernel.bound;
  const Op& op = *bound.op;
  Shape shape;
  Arguments arguments = kernel.attributes;
  ONNXFOLD_TRY(read_inputs(kernel, context, shape, arguments));
  if (op.with_sum)
    ONNXFOLD_TRY(open_output(bound.api, context, output_count(op) - 1, shape, &arguments.sum));
  Shape rows = shape;
  rows_shape(kernel.axis, rows);
  if (op.output == Output::QUANTIZED_ROWS)
    ONNXFOLD_TRY(open_output(bound.api, context, 1, rows, &arguments.y_scales));
  void* y = nullptr;
  output_shape(op, shape);
  const bool scales = op.output == Output::SCALE;
  ONNXFOLD_TRY(open_output(bound.api, context, 0, scales ? rows : shape, &y));
  if (scales)
    arguments.row_scales = static_cast<float*>(y);
  else
    arguments.y = y;
  Call call = {bound.api, op, context};
  const Executor executor = {parallel_for, stream_of, device_of, fail, &call};
  Failure* failure = bound.backend->launch(op, bound.type, arguments, executor);
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
  Described y = {0, 0, op.statistics == Statistics::CRMS_FULL}, rows = {0, 0, false};
  if (quantised(op)) ONNXFOLD_TRY(type_of_codes(api, op, context, &y.type));
  if (op.output == Output::SCALE || op.output == Output::QUANTIZED_ROWS)
    ONNXFOLD_TRY(inferred_axis(api, context, &rows.axis));
  if (op.output == Output::SCALE) y = {ORT_ELEMENT_FLOAT, rows.axis, false};
  ONNXFOLD_TRY(set_output(api, op, context, 0, x, y));
  if (op.output == Output::QUANTIZED_ROWS) ONNXFOLD_TRY(set_output(api, op, context, 1, x, rows));
  if (!op.with_sum) return nullptr;
  return set_output(api, op, context, output_count(op) - 1, x, {0, 0, false});
}

}  // namespace onnxfold
