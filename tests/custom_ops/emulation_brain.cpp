#include "emulation.inc"

void onnxfold::cuda::emulate_brain(const Op& op, const Plan& plan, const Arguments& arguments) {
  by_statistics<Brain>(op, plan, arguments);
}
void onnxfold::cuda::emulate_parts_brain(const Op& op, const Plan& plan, const Arguments& arguments,
                                       const Parts& parts, Stage stage) {
  parts_by_statistics<Brain>(op, plan, arguments, parts, stage);
}
