/* Runs a model through ONNX Runtime's C API with the kernel library, as Triton, C++ and C# do.

     run_model libonnxruntime.so libonnxfold_ops.so model.onnx dim...

   Every input is float32 [dim, ...] with element i = i mod 7 - 3 (input k: plus k). Prints each
   output's elements, then, for every node of the op probe.Probe, which copies its input, the
   addresses of its input and output. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "onnxfold/ort_abi.h"

enum { kMaxTensors = 8, kMaxProbes = 16, kMaxRank = 8 };

typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtAllocator OrtAllocator;

/* What a client calls and a custom op does not, by slot of the same table. */
typedef struct {
  void* unused_0[3];
  OrtStatus* (*CreateEnv)(int level, const char* id, OrtEnv** out); /* 3 */
  void* unused_4[3];
  OrtStatus* (*CreateSession)(const OrtEnv*, const char*, const OrtSessionOptions*, OrtSession**);
  void* unused_8;
  OrtStatus* (*Run)(OrtSession*, const OrtRunOptions*, const char* const* input_names,
                    const OrtValue* const* inputs, size_t, const char* const* output_names, size_t,
                    OrtValue** outputs); /* 9 */
  OrtStatus* (*CreateSessionOptions)(OrtSessionOptions** out); /* 10 */
  void* unused_11;
  OrtStatus* (*CloneSessionOptions)(const OrtSessionOptions*, OrtSessionOptions** out); /* 12 */
  void* unused_13[16];
  OrtStatus* (*RegisterCustomOpsLibrary)(OrtSessionOptions*, const char* path, void** handle);
  OrtStatus* (*SessionGetInputCount)(const OrtSession*, size_t* out); /* 30 */
  OrtStatus* (*SessionGetOutputCount)(const OrtSession*, size_t* out);
  void* unused_32[4];
  OrtStatus* (*SessionGetInputName)(const OrtSession*, size_t, OrtAllocator*, char** out); /* 36 */
  OrtStatus* (*SessionGetOutputName)(const OrtSession*, size_t, OrtAllocator*, char** out);
  void* unused_38[11];
  OrtStatus* (*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo*, void*, size_t bytes,
                                               const int64_t* dims, size_t rank, int type,
                                               OrtValue** out); /* 49 */
  void* unused_50[19];
  OrtStatus* (*CreateCpuMemoryInfo)(int allocator, int memory, OrtMemoryInfo** out); /* 69 */
  void* unused_70[8];
  OrtStatus* (*GetAllocatorWithDefaultOptions)(OrtAllocator** out); /* 78 */
  void* unused_79[13];
  void (*ReleaseEnv)(OrtEnv*); /* 92 */
  void* unused_93;
  void (*ReleaseMemoryInfo)(OrtMemoryInfo*); /* 94 */
  void (*ReleaseSession)(OrtSession*);
  void (*ReleaseValue)(OrtValue*);
  void* unused_97[3];
  void (*ReleaseSessionOptions)(OrtSessionOptions*); /* 100 */
} ClientApi;

static const OrtApi* api;
static const ClientApi* client;

static void check(OrtStatus* status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  api->ReleaseStatus(status);
  exit(1);
}

static struct {
  const void* input;
  const void* output;
} probes[kMaxProbes];
static size_t probe_count;

static const char* probe_name(const OrtCustomOp* op) { return (void)op, "Probe"; }
static const char* probe_provider(const OrtCustomOp* op) { return (void)op, "CPUExecutionProvider"; }
static int probe_type(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, ORT_ELEMENT_FLOAT; }
static size_t one(const OrtCustomOp* op) { return (void)op, (size_t)1; }
static int zero_of_index(const OrtCustomOp* op, size_t i) { return (void)op, (void)i, 0; }
static int zero(const OrtCustomOp* op) { return (void)op, 0; }
static int version_one(const OrtCustomOp* op) { return (void)op, 1; }
static void release_pairs(int* a, int* b) { (void)a, (void)b; }
static void destroy(void* kernel) { (void)kernel; }

static size_t no_pairs(int** inputs, int** outputs) {
  *inputs = *outputs = NULL;
  return 0;
}

static OrtStatus* probe_create(const OrtCustomOp* op, const OrtApi* a, const OrtKernelInfo* info,
                               void** kernel) {
  (void)a, (void)info;
  *kernel = (void*)(uintptr_t)op;
  return NULL;
}

static OrtStatus* probe_compute(void* kernel, OrtKernelContext* context) {
  const OrtValue* input = NULL;
  OrtValue* output = NULL;
  OrtTensorTypeAndShapeInfo* info = NULL;
  int64_t dims[2];
  void *from = NULL, *to = NULL;
  (void)kernel;
  check(api->KernelContext_GetInput(context, 0, &input));
  check(api->GetTensorTypeAndShape(input, &info));
  check(api->GetDimensions(info, dims, 2));
  api->ReleaseTensorTypeAndShapeInfo(info);
  check(api->KernelContext_GetOutput(context, 0, dims, 2, &output));
  check(api->GetTensorMutableData((OrtValue*)(uintptr_t)input, &from));
  check(api->GetTensorMutableData(output, &to));
  memcpy(to, from, (size_t)(dims[0] * dims[1]) * sizeof(float));
  if (probe_count < kMaxProbes) {
    probes[probe_count].input = from;
    probes[probe_count++].output = to;
  }
  return NULL;
}

static OrtStatus* probe_shape(const OrtCustomOp* op, OrtShapeInferContext* context) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  (void)op;
  check(api->ShapeInferContext_GetInputTypeShape(context, 0, &info));
  return api->ShapeInferContext_SetOutputTypeShape(context, 0, info);
}

static const OrtCustomOp probe = {
    17,          NULL,      probe_name, probe_provider, probe_type,    one,           probe_type,
    one,         NULL,      destroy,    zero_of_index,  zero_of_index, zero_of_index, zero,
    zero,        zero,      zero,       probe_create,   probe_compute, probe_shape,   version_one,
    version_one, no_pairs,  release_pairs, no_pairs,    release_pairs,
};

static OrtSessionOptions* options_with_library(const char* library, void** handle) {
  OrtSessionOptions *model_options = NULL, *options = NULL;
  OrtCustomOpDomain* domain = NULL;
  /* Triton registers on a copy of the model's options for each instance. */
  check(client->CreateSessionOptions(&model_options));
  check(client->CloneSessionOptions(model_options, &options));
  client->ReleaseSessionOptions(model_options);
  check(client->RegisterCustomOpsLibrary(options, library, handle));
  check(api->CreateCustomOpDomain("probe", &domain));
  check(api->CustomOpDomain_Add(domain, &probe));
  check(api->AddCustomOpDomain(options, domain));
  return options;
}

typedef struct {
  int64_t dims[kMaxRank];
  size_t rank;
} Shape;

static OrtValue* make_input(size_t which, const Shape* shape) {
  size_t count = 1;
  for (size_t i = 0; i < shape->rank; ++i) count *= (size_t)shape->dims[i];
  float* data = malloc(count * sizeof(float));
  OrtMemoryInfo* memory = NULL;
  OrtValue* value = NULL;
  for (size_t i = 0; i < count; ++i) data[i] = (float)(i % 7) - 3.0f + (float)which;
  check(client->CreateCpuMemoryInfo(0, 0, &memory));
  check(client->CreateTensorWithDataAsOrtValue(memory, data, count * sizeof(float), shape->dims,
                                               shape->rank, ORT_ELEMENT_FLOAT, &value));
  client->ReleaseMemoryInfo(memory);
  return value;
}

static void print_output(OrtValue* value) {
  OrtTensorTypeAndShapeInfo* info = NULL;
  size_t count = 0;
  void* data = NULL;
  check(api->GetTensorTypeAndShape(value, &info));
  check(api->GetTensorShapeElementCount(info, &count));
  api->ReleaseTensorTypeAndShapeInfo(info);
  check(api->GetTensorMutableData(value, &data));
  for (size_t i = 0; i < count; ++i) printf("%.9g ", (double)((float*)data)[i]);
  printf("\n");
}

static void run(OrtSession* session, const Shape* shape) {
  OrtAllocator* allocator = NULL;
  size_t inputs = 0, outputs = 0;
  char *input_names[kMaxTensors], *output_names[kMaxTensors];
  OrtValue *input_values[kMaxTensors], *output_values[kMaxTensors] = {NULL};
  check(client->GetAllocatorWithDefaultOptions(&allocator));
  check(client->SessionGetInputCount(session, &inputs));
  check(client->SessionGetOutputCount(session, &outputs));
  for (size_t i = 0; i < inputs; ++i) {
    check(client->SessionGetInputName(session, i, allocator, &input_names[i]));
    input_values[i] = make_input(i, shape);
  }
  for (size_t i = 0; i < outputs; ++i)
    check(client->SessionGetOutputName(session, i, allocator, &output_names[i]));
  check(client->Run(session, NULL, (const char* const*)input_names,
                    (const OrtValue* const*)input_values, inputs, (const char* const*)output_names,
                    outputs, output_values));
  for (size_t i = 0; i < outputs; ++i) print_output(output_values[i]);
}

int main(int argc, char** argv) {
  Shape shape = {{0}, 0};
  if (argc < 4 || argc - 4 > kMaxRank) return 2;
  for (int i = 4; i < argc; ++i) shape.dims[shape.rank++] = atol(argv[i]);
  void* runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (runtime == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  const OrtApiBase* (*get_base)(void) = NULL;
  *(void**)&get_base = dlsym(runtime, "OrtGetApiBase");
  api = get_base()->GetApi(17);
  client = (const ClientApi*)(const void*)api;

  OrtEnv* env = NULL;
  OrtSession* sessions[2];
  void* handles[2];
  check(client->CreateEnv(3, "run_model", &env));
  for (int i = 0; i < 2; ++i) {
    OrtSessionOptions* options = options_with_library(argv[2], &handles[i]);
    check(client->CreateSession(env, argv[3], options, &sessions[i]));
    client->ReleaseSessionOptions(options);
  }
  /* The library is unloaded before the sessions that use it. */
  for (int i = 0; i < 2; ++i) dlclose(handles[i]);
  run(sessions[1], &shape);
  for (size_t i = 0; i < probe_count; ++i)
    printf("probe %p %p\n", probes[i].input, probes[i].output);
  for (int i = 0; i < 2; ++i) client->ReleaseSession(sessions[i]);
  client->ReleaseEnv(env);
  return 0;
}
