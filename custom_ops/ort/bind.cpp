// Binds the table of ops to ONNX Runtime; the one file with an exported symbol.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernel.h"
#include "onnxfold/memory.h"
#include "onnxfold/ops.h"

namespace onnxfold {

namespace {

constexpr uint32_t kOldestMinor = 17;  // ParallelFor, shape inference
constexpr uint32_t kNewestUsed = 18;   // GetMayInplace, of OrtCustomOp
constexpr uint32_t kLendsShapes = 24;  // GetTensorElementTypeAndShapeDataReference

// Kernels for a provider that the runtime at hand does not have disturb nobody.
const Backend* const backends[] = {
    &cpu_backend,
#if defined(ONNXFOLD_CUDA)
    &cuda_backend,
    &cuda_plugin_backend,
#endif
};
constexpr ElementType types[] = {ElementType::FLOAT, ElementType::FLOAT16, ElementType::BFLOAT16};
constexpr Code codes[] = {Code::INT8, Code::UINT8, Code::FLOAT8};

const BoundOp& bound(const OrtCustomOp* op) { return *static_cast<const BoundOp*>(op); }

int element_type(ElementType type) {
  switch (type) {
    case ElementType::FLOAT: return ORT_ELEMENT_FLOAT;
    case ElementType::FLOAT16: return ORT_ELEMENT_FLOAT16;
    case ElementType::BFLOAT16: return ORT_ELEMENT_BFLOAT16;
  }
  return ORT_ELEMENT_FLOAT;
}

int code_type(Code code) {
  return code == Code::INT8    ? ORT_ELEMENT_INT8
         : code == Code::UINT8 ? ORT_ELEMENT_UINT8
                               : ORT_ELEMENT_FLOAT8E4M3FN;
}

int input_type(const OrtCustomOp* op, size_t index) {
  switch (inputs_of(*bound(op).op).at[index]) {
    case Input::ROW_SCALE:
    case Input::ROW_EPSILON: return ORT_ELEMENT_FLOAT;
    case Input::Y_ZERO_POINT: return code_type(bound(op).code);
    default: return element_type(bound(op).type);
  }
}

int output_type(const OrtCustomOp* op, size_t index) {
  const BoundOp& b = bound(op);
  if (index == 0 && quantised(*b.op)) return code_type(b.code);
  if (index == 0 && b.op->output == Output::SCALE) return ORT_ELEMENT_FLOAT;
  return element_type(b.type);
}

// Pairs (input, output) that may share memory. No input stands in two pairs: ONNX Runtime might
// give both outputs the same buffer when nothing reads one of them.
template <int FirstOutput, int SecondOutput>
size_t inplace_pairs(int** inputs, int** outputs) {
  static int from[] = {0, 1};
  static int to[] = {FirstOutput, SecondOutput};
  *inputs = from;
  *outputs = to;
  return SecondOutput < 0 ? 1 : 2;
}

// A Sum may take the place of X where Y is another type or shape.
template <int Sum>
size_t sum_in_place(int** inputs, int** outputs) {
  static int from[] = {0};
  static int to[] = {Sum};
  *inputs = from;
  *outputs = to;
  return 1;
}

size_t no_pairs(int** inputs, int** outputs) {
  *inputs = *outputs = nullptr;
  return 0;
}

void nothing_to_release(int*, int*) {}

size_t (*pairs_of(const Op& op))(int**, int**) {
  if (op.output == Output::SCALE || op.output == Output::QUANTIZED)
    return op.with_sum ? sum_in_place<1> : no_pairs;
  if (op.output == Output::QUANTIZED_ROWS) return op.with_sum ? sum_in_place<2> : no_pairs;
  if (op.statistics == Statistics::CRMS_FULL) return no_pairs;
  if (op.with_sum) return inplace_pairs<0, 1>;
  return op.residual ? inplace_pairs<0, 0> : inplace_pairs<0, -1>;
}

// ONNX Runtime calls every callback that the version implies, so none is left null but the two
// that the V2 forms replace.
BoundOp bind(const OrtApi* api, uint32_t minor, const Op& op, const Backend& backend,
             ElementType type, Code code) {
  BoundOp b = {};
  b.version = minor < kNewestUsed ? minor : kNewestUsed;
  b.api = api;
  b.lends_shapes = minor >= kLendsShapes;
  b.op = &op;
  b.backend = &backend;
  b.type = type;
  b.code = code;
  b.GetName = [](const OrtCustomOp* self) { return bound(self).op->name; };
  b.GetExecutionProviderType = [](const OrtCustomOp* self) {
    return bound(self).backend->provider;
  };
  b.GetInputType = input_type;
  b.GetOutputType = output_type;
  b.GetInputTypeCount = [](const OrtCustomOp* self) { return inputs_of(*bound(self).op).count; };
  b.GetOutputTypeCount = [](const OrtCustomOp* self) { return output_count(*bound(self).op); };
  b.KernelDestroy = destroy_kernel;
  b.GetInputCharacteristic = b.GetOutputCharacteristic =
      [](const OrtCustomOp*, size_t) -> int { return ORT_CHARACTERISTIC_REQUIRED; };
  b.GetInputMemoryType = [](const OrtCustomOp*, size_t) -> int { return ORT_MEMORY_DEFAULT; };
  b.GetVariadicInputMinArity = b.GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  b.GetVariadicInputHomogeneity = b.GetVariadicOutputHomogeneity =
      [](const OrtCustomOp*) { return 0; };
  b.CreateKernelV2 = create_kernel;
  b.KernelComputeV2 = compute;
  b.InferOutputShape = infer_shapes;
  b.GetStartVersion = b.GetEndVersion = [](const OrtCustomOp*) { return 1; };
  b.GetMayInplace = pairs_of(op);
  b.GetAliasMap = no_pairs;
  b.ReleaseMayInplace = b.ReleaseAliasMap = nothing_to_release;
  return b;
}

// The ops of one loaded ONNX Runtime. Never freed: sessions may outlive whoever registered.
struct Registration {
  const OrtApi* api;
  OrtCustomOpDomain* domain;
  Registration* next;
};

OrtStatus* add_op(const OrtApi* api, uint32_t minor, OrtCustomOpDomain* domain, const Op& op,
                  const Backend& backend, ElementType type) {
  const size_t count = quantised(op) ? sizeof(codes) / sizeof(codes[0]) : 1;
  for (size_t i = 0; i < count; ++i) {
    const Code code = quantised(op) ? codes[i] : Code::NONE;
    BoundOp* made = copy_to_heap(bind(api, minor, op, backend, type, code));
    if (made == nullptr) return api->CreateStatus(ORT_FAIL, "onnxfold: out of memory");
    if (OrtStatus* status = api->CustomOpDomain_Add(domain, made)) return status;
  }
  return nullptr;
}

OrtStatus* add_ops(const OrtApi* api, uint32_t minor, OrtCustomOpDomain* domain) {
  for (const Backend* backend : backends) {
    for (size_t i = 0; i < op_count; ++i) {
      for (ElementType type : types) {
        if (OrtStatus* status = add_op(api, minor, domain, ops[i], *backend, type)) return status;
      }
    }
  }
  return nullptr;
}

OrtStatus* registration(const OrtApi* api, uint32_t minor, OrtCustomOpDomain** domain) {
  static Registration* first = nullptr;
  for (Registration* known = first; known != nullptr; known = known->next) {
    if (known->api == api) {
      *domain = known->domain;
      return nullptr;
    }
  }
  if (OrtStatus* status = api->CreateCustomOpDomain("onnxfold", domain)) return status;
  if (OrtStatus* status = add_ops(api, minor, *domain)) return status;
  Registration* made = copy_to_heap(Registration{api, *domain, first});
  if (made == nullptr) return api->CreateStatus(ORT_FAIL, "onnxfold: out of memory");
  first = made;
  return nullptr;
}

// The table of entries. A runtime gives none of a version that it does not know, or no longer; all
// that stands in one stands in every later one.
const OrtApi* find_api(const OrtApiBase* base, uint32_t minor) {
  const OrtApi* api = base->GetApi(minor < kLendsShapes ? kOldestMinor : kLendsShapes);
  return api != nullptr ? api : base->GetApi(minor);
}

// Without a table no status can be made. Nothing is registered: models run the bodies of functions.
OrtStatus* nothing_registered(const OrtApiBase* base) {
  fprintf(stderr, "onnxfold: ONNX Runtime %s has no C API of 1.%u: its kernels are not registered\n",
          base->GetVersionString(), kOldestMinor);
  return nullptr;
}

// The minor of "1.minor.patch"; 1.x is all there is, and a later major is newer than any of it.
uint32_t runtime_minor(const char* version) {
  char* end = nullptr;
  const unsigned long major = strtoul(version, &end, 10);
  if (major != 1) return major == 0 ? 0 : kNewestUsed;
  return *end == '.' ? static_cast<uint32_t>(strtoul(end + 1, nullptr, 10)) : 0;
}

}  // namespace
}  // namespace onnxfold

extern "C" __attribute__((visibility("default"))) OrtStatus* RegisterCustomOps(
    OrtSessionOptions* options, const OrtApiBase* base) {
  using namespace onnxfold;
  const uint32_t minor = runtime_minor(base->GetVersionString());
  if (minor < kOldestMinor) {
    char message[128];
    snprintf(message, sizeof(message), "onnxfold needs ONNX Runtime 1.%u or newer; this is %s",
             kOldestMinor, base->GetVersionString());
    const OrtApi* oldest = base->GetApi(1);
    return oldest != nullptr ? oldest->CreateStatus(ORT_FAIL, message) : nothing_registered(base);
  }
  const OrtApi* api = find_api(base, minor);
  if (api == nullptr) return nothing_registered(base);
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  OrtCustomOpDomain* domain = nullptr;
  OrtStatus* status = registration(api, minor, &domain);
  pthread_mutex_unlock(&lock);
  return status != nullptr ? status : api->AddCustomOpDomain(options, domain);
}
