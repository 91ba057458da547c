#include "emulation.inc"

void onnxfold::cuda::emulate_bfloat16(const Op& op, const Plan& plan, const Arguments& arguments) {
  by_statistics<BFloat16>(op, plan, arguments);
}
void onnxfold::cuda::emulate_parts_bfloat16(const Op& op, const Plan& plan, const Arguments& arguments,
                                       const Parts& parts, Stage stage) {
  parts_by_statistics<BFloat16>(op, plan, arguments, parts, stage);
}
