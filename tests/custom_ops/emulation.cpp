#include "emulation.h"

#include <string.h>

#include <vector>

#include "onnxfold/ops.h"

namespace onnxfold {

namespace cuda {

void emulate_planned(const Op& op, ElementType type, const Plan& plan, const Arguments& arguments) {
  switch (type) {
    case ElementType::FLOAT: return emulate_float(op, plan, arguments);
    case ElementType::FLOAT16: return emulate_half(op, plan, arguments);
    case ElementType::BFLOAT16: return emulate_bfloat16(op, plan, arguments);
  }
}

void emulate_parts(const Op& op, ElementType type, const Plan& plan, const Arguments& arguments,
                   const Parts& parts, Stage stage) {
  switch (type) {
    case ElementType::FLOAT: return emulate_parts_float(op, plan, arguments, parts, stage);
    case ElementType::FLOAT16: return emulate_parts_half(op, plan, arguments, parts, stage);
    case ElementType::BFLOAT16: return emulate_parts_bfloat16(op, plan, arguments, parts, stage);
  }
}

void emulate(const Op& op, ElementType type, const Arguments& arguments, int multiprocessors) {
  const Plan plan = plan_rows(op, type, arguments, multiprocessors);
  if (plan.blocks == 0) return;
  if (plan.parts == 1) return emulate_planned(op, type, plan, arguments);
  std::vector<Partial> partials(static_cast<size_t>(plan.blocks));
  memset(static_cast<void*>(partials.data()), 0xff, partials.size() * sizeof(Partial));  // NaN
  const Parts parts = {partials.data(), plan.parts, part_length(type, arguments.size, plan)};
  emulate_parts(op, type, plan, arguments, parts, Stage::MEASURE);
  emulate_parts(op, type, plan, arguments, parts, Stage::NORMALISE);
}

}  // namespace cuda

namespace {

const Op* find(const char* name) {
  for (size_t i = 0; i < op_count; ++i)
    if (strcmp(ops[i].name, name) == 0) return &ops[i];
  return nullptr;
}

}  // namespace

}  // namespace onnxfold

// As in custom_ops/cuda/driver.cpp.
extern "C" const char* onnxfold_run(const char* name, int type,
                                    const onnxfold::Arguments* arguments, int multiprocessors,
                                    void*) {
  const onnxfold::Op* op = onnxfold::find(name);
  if (op == nullptr) return "no such op";
  onnxfold::cuda::emulate(*op, static_cast<onnxfold::ElementType>(type), *arguments,
                          multiprocessors);
  return nullptr;
}

extern "C" const char* onnxfold_plan(const char* name, int type,
                                     const onnxfold::Arguments* arguments, int multiprocessors,
                                     onnxfold::cuda::Plan* plan) {
  const onnxfold::Op* op = onnxfold::find(name);
  if (op == nullptr) return "no such op";
  *plan = onnxfold::cuda::plan_rows(*op, static_cast<onnxfold::ElementType>(type), *arguments,
                                    multiprocessors);
  return nullptr;
}
