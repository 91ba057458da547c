// Binds the table of ops to ONNX Runtime; the one file with an exported symbol.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <new>

#include "kernel.h"
#include "onnxfold/ops.h"

namespace onnxfold {

size_t input_count(const Op& op) {
  const size_t affine = op.affine == Affine::NONE ? 0 : op.affine == Affine::SCALE ? 1 : 2;
  return 1 + (op.residual ? 1 : 0) + (op.linear_bias ? 1 : 0) + affine;
}

namespace {

constexpr uint32_t kOldestMinor = 17;  // ParallelFor, shape inference
constexpr uint32_t kNewestUsed = 18;   // GetMayInplace

// Kernels for a provider that the runtime at hand does not have disturb nobody.
const Backend* const backends[] = {
    &cpu_backend,
#if defined(ONNXFOLD_CUDA)
    &cuda_backend,
    &cuda_plugin_backend,
#endif
};
constexpr ElementType types[] = {ElementType::FLOAT, ElementType::FLOAT16, ElementType::BFLOAT16};

const BoundOp& bound(const OrtCustomOp* op) { return *static_cast<const BoundOp*>(op); }

int element_type(const OrtCustomOp* op, size_t) {
  switch (bound(op).type) {
    case ElementType::FLOAT: return ORT_ELEMENT_FLOAT;
    case ElementType::FLOAT16: return ORT_ELEMENT_FLOAT16;
    case ElementType::BFLOAT16: return ORT_ELEMENT_BFLOAT16;
  }
  return ORT_ELEMENT_FLOAT;
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

size_t no_pairs(int** inputs, int** outputs) {
  *inputs = *outputs = nullptr;
  return 0;
}

void nothing_to_release(int*, int*) {}

// ONNX Runtime calls every callback that the version implies, so none is left null but the two
// that the V2 forms replace.
BoundOp bind(const OrtApi* api, uint32_t version, const Op& op, const Backend& backend,
             ElementType type) {
  BoundOp b = {};
  b.version = version;
  b.api = api;
  b.op = &op;
  b.backend = &backend;
  b.type = type;
  b.GetName = [](const OrtCustomOp* self) { return bound(self).op->name; };
  b.GetExecutionProviderType = [](const OrtCustomOp* self) {
    return bound(self).backend->provider;
  };
  b.GetInputType = b.GetOutputType = element_type;
  b.GetInputTypeCount = [](const OrtCustomOp* self) { return input_count(*bound(self).op); };
  b.GetOutputTypeCount = [](const OrtCustomOp* self) -> size_t {
    return bound(self).op->with_sum ? 2 : 1;
  };
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
  b.GetMayInplace = op.statistics == Statistics::CRMS_FULL ? no_pairs
                    : op.with_sum                          ? inplace_pairs<0, 1>
                    : op.residual                          ? inplace_pairs<0, 0>
                                                           : inplace_pairs<0, -1>;
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

OrtStatus* add_ops(const OrtApi* api, uint32_t version, OrtCustomOpDomain* domain) {
  for (const Backend* backend : backends) {
    for (size_t i = 0; i < op_count; ++i) {
      for (ElementType type : types) {
        BoundOp* op = new (std::nothrow) BoundOp(bind(api, version, ops[i], *backend, type));
        if (op == nullptr) return api->CreateStatus(ORT_FAIL, "onnxfold: out of memory");
        if (OrtStatus* status = api->CustomOpDomain_Add(domain, op)) return status;
      }
    }
  }
  return nullptr;
}

OrtStatus* registration(const OrtApi* api, uint32_t version, OrtCustomOpDomain** domain) {
  static Registration* first = nullptr;
  for (Registration* known = first; known != nullptr; known = known->next) {
    if (known->api == api) {
      *domain = known->domain;
      return nullptr;
    }
  }
  if (OrtStatus* status = api->CreateCustomOpDomain("onnxfold", domain)) return status;
  if (OrtStatus* status = add_ops(api, version, *domain)) return status;
  Registration* made = new (std::nothrow) Registration{api, *domain, first};
  if (made == nullptr) return api->CreateStatus(ORT_FAIL, "onnxfold: out of memory");
  first = made;
  return nullptr;
}

// The table of entries. A runtime gives none of a version that it does not know, or no longer; all
// that stands in one stands in every later one.
const OrtApi* find_api(const OrtApiBase* base, uint32_t minor) {
  const OrtApi* api = base->GetApi(kOldestMinor);
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
  OrtStatus* status = registration(api, minor < kNewestUsed ? minor : kNewestUsed, &domain);
  pthread_mutex_unlock(&lock);
  return status != nullptr ? status : api->AddCustomOpDomain(options, domain);
}
