#include "emulation.inc"

void onnxfold::cuda::emulate_float(const Op& op, const Plan& plan, const Arguments& arguments) {
  by_statistics<float>(op, plan, arguments);
}
void onnxfold::cuda::emulate_parts_float(const Op& op, const Plan& plan, const Arguments& arguments,
                                       const Parts& parts, Stage stage) {
  parts_by_statistics<float>(op, plan, arguments, parts, stage);
}
