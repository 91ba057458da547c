// The subset of ONNX Runtime's C ABI that this library uses, declared by us so that building needs
// no package of ONNX Runtime. The ABI is append-only: a slot never moves and never changes meaning.
// Newest entry used: API 17 (ONNX Runtime 1.17), and one of API 24 where the runtime has it; OrtCustomOp
// up to version 18.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtShapeInferContext OrtShapeInferContext;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtCustomOp OrtCustomOp;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum { ORT_ELEMENT_FLOAT = 1, ORT_ELEMENT_FLOAT16 = 10, ORT_ELEMENT_BFLOAT16 = 16 };
enum { ORT_ELEMENT_UINT8 = 2, ORT_ELEMENT_INT8 = 3, ORT_ELEMENT_FLOAT8E4M3FN = 17 };
enum { ORT_OP_ATTR_INT = 1 };
enum { ORT_CHARACTERISTIC_REQUIRED = 0 };
enum { ORT_MEMORY_DEFAULT = 0 };

typedef struct OrtApi {
  OrtStatus* (*CreateStatus)(int code, const char* message);  // 0
  void* unused_1;
  const char* (*GetErrorMessage)(const OrtStatus* status);  // 2
  void* unused_3[23];
  OrtStatus* (*CreateCustomOpDomain)(const char* name, OrtCustomOpDomain** domain);            // 26
  OrtStatus* (*CustomOpDomain_Add)(OrtCustomOpDomain* domain, const OrtCustomOp* op);          // 27
  OrtStatus* (*AddCustomOpDomain)(OrtSessionOptions* options, OrtCustomOpDomain* domain);      // 28
  void* unused_29[22];
  OrtStatus* (*GetTensorMutableData)(OrtValue* value, void** data);  // 51
  void* unused_52[5];
  OrtStatus* (*CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo** info);             // 57
  OrtStatus* (*SetTensorElementType)(OrtTensorTypeAndShapeInfo* info, int type);            // 58
  // 59
  OrtStatus* (*SetDimensions)(OrtTensorTypeAndShapeInfo* info, const int64_t* dims, size_t rank);
  OrtStatus* (*GetTensorElementType)(const OrtTensorTypeAndShapeInfo* info, int* type);     // 60
  OrtStatus* (*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo* info, size_t* rank);    // 61
  // 62
  OrtStatus* (*GetDimensions)(const OrtTensorTypeAndShapeInfo* info, int64_t* dims, size_t rank);
  // 63
  OrtStatus* (*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo* info, const char** names,
      size_t rank);
  // 64
  OrtStatus* (*GetTensorShapeElementCount)(const OrtTensorTypeAndShapeInfo* info, size_t* count);
  // 65
  OrtStatus* (*GetTensorTypeAndShape)(const OrtValue* value, OrtTensorTypeAndShapeInfo** info);
  void* unused_66[6];
  OrtStatus* (*MemoryInfoGetId)(const OrtMemoryInfo* info, int* id);  // 72
  void* unused_73[12];
  // 85
  OrtStatus* (*KernelInfoGetAttribute_float)(const OrtKernelInfo* info, const char* name,
      float* out);
  // 86
  OrtStatus* (*KernelInfoGetAttribute_int64)(const OrtKernelInfo* info, const char* name,
      int64_t* out);
  void* unused_87[3];
  // 90
  OrtStatus* (*KernelContext_GetInput)(const OrtKernelContext* context, size_t index,
      const OrtValue** out);
  // 91
  OrtStatus* (*KernelContext_GetOutput)(OrtKernelContext* context, size_t index,
      const int64_t* dims, size_t rank, OrtValue** out);
  void* unused_92;
  void (*ReleaseStatus)(OrtStatus* status);  // 93
  void* unused_94[5];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo* info);  // 99
  void* unused_100[93];
  // 193
  OrtStatus* (*KernelContext_GetGPUComputeStream)(const OrtKernelContext* context, void** stream);
  OrtStatus* (*GetTensorMemoryInfo)(const OrtValue* value, const OrtMemoryInfo** info);  // 194
  void* unused_195[54];
  // 249
  OrtStatus* (*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo* info, size_t index,
      int* is_constant, const OrtValue** value);
  void* unused_250[18];
  // 268
  OrtStatus* (*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext* context,
      size_t index, OrtTensorTypeAndShapeInfo** info);
  // 269
  OrtStatus* (*ShapeInferContext_GetAttribute)(const OrtShapeInferContext* context,
      const char* name, const OrtOpAttr** attribute);
  // 270
  OrtStatus* (*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext* context,
      size_t index, const OrtTensorTypeAndShapeInfo* info);
  // 271
  OrtStatus* (*SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo* info, const char** names,
      size_t rank);
  // 272
  OrtStatus* (*ReadOpAttr)(const OrtOpAttr* attribute, int type, void* data, size_t size,
      size_t* out);
  void* unused_273;
  // 274
  OrtStatus* (*KernelContext_ParallelFor)(const OrtKernelContext* context,
      void (*task)(void* data, size_t index), size_t total, size_t batches, void* data);
  void* unused_275[139];
  // 414, since 24: dims are the value's own, and null for a scalar
  OrtStatus* (*GetTensorElementTypeAndShapeDataReference)(const OrtValue* value, int* type,
      const int64_t** dims, size_t* rank);
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)(void);
} OrtApiBase;

struct OrtCustomOp {
  uint32_t version;
  void* (*CreateKernel)(const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* info);
  const char* (*GetName)(const OrtCustomOp* op);
  const char* (*GetExecutionProviderType)(const OrtCustomOp* op);
  int (*GetInputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp* op);
  int (*GetOutputType)(const OrtCustomOp* op, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp* op);
  void (*KernelCompute)(void* kernel, OrtKernelContext* context);
  void (*KernelDestroy)(void* kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp* op, size_t index);   // since 8
  int (*GetOutputCharacteristic)(const OrtCustomOp* op, size_t index);  // since 8
  int (*GetInputMemoryType)(const OrtCustomOp* op, size_t index);       // since 13
  int (*GetVariadicInputMinArity)(const OrtCustomOp* op);               // since 14
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp* op);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp* op);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp* op);
  // since 16
  OrtStatus* (*CreateKernelV2)(const OrtCustomOp* op, const OrtApi* api,
      const OrtKernelInfo* info, void** kernel);
  OrtStatus* (*KernelComputeV2)(void* kernel, OrtKernelContext* context);
  OrtStatus* (*InferOutputShape)(const OrtCustomOp* op, OrtShapeInferContext* context);  // since 17
  int (*GetStartVersion)(const OrtCustomOp* op);
  int (*GetEndVersion)(const OrtCustomOp* op);
  size_t (*GetMayInplace)(int** input_index, int** output_index);  // since 18
  void (*ReleaseMayInplace)(int* input_index, int* output_index);
  size_t (*GetAliasMap)(int** input_index, int** output_index);
  void (*ReleaseAliasMap)(int* input_index, int* output_index);
};

#ifdef __cplusplus
}  // extern "C"

#define ONNXFOLD_SLOT(name, slot) \
  static_assert(offsetof(OrtApi, name) == (slot) * sizeof(void*), #name " is not in its slot")
ONNXFOLD_SLOT(GetErrorMessage, 2);
ONNXFOLD_SLOT(CreateCustomOpDomain, 26);
ONNXFOLD_SLOT(GetTensorMutableData, 51);
ONNXFOLD_SLOT(CreateTensorTypeAndShapeInfo, 57);
ONNXFOLD_SLOT(GetSymbolicDimensions, 63);
ONNXFOLD_SLOT(GetTensorShapeElementCount, 64);
ONNXFOLD_SLOT(MemoryInfoGetId, 72);
ONNXFOLD_SLOT(KernelInfoGetAttribute_float, 85);
ONNXFOLD_SLOT(KernelContext_GetInput, 90);
ONNXFOLD_SLOT(ReleaseStatus, 93);
ONNXFOLD_SLOT(ReleaseTensorTypeAndShapeInfo, 99);
ONNXFOLD_SLOT(KernelContext_GetGPUComputeStream, 193);
ONNXFOLD_SLOT(GetTensorMemoryInfo, 194);
ONNXFOLD_SLOT(KernelInfoGetConstantInput_tensor, 249);
ONNXFOLD_SLOT(ShapeInferContext_GetInputTypeShape, 268);
ONNXFOLD_SLOT(ShapeInferContext_GetAttribute, 269);
ONNXFOLD_SLOT(ShapeInferContext_SetOutputTypeShape, 270);
ONNXFOLD_SLOT(SetSymbolicDimensions, 271);
ONNXFOLD_SLOT(ReadOpAttr, 272);
ONNXFOLD_SLOT(KernelContext_ParallelFor, 274);
ONNXFOLD_SLOT(GetTensorElementTypeAndShapeDataReference, 414);
#undef ONNXFOLD_SLOT
#endif
