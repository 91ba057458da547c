#include "emulation.inc"

void onnxfold::cuda::emulate_half(const Op& op, const Plan& plan, const Arguments& arguments) {
  by_statistics<Half>(op, plan, arguments);
}
void onnxfold::cuda::emulate_parts_half(const Op& op, const Plan& plan, const Arguments& arguments,
                                       const Parts& parts, Stage stage) {
  parts_by_statistics<Half>(op, plan, arguments, parts, stage);
}
