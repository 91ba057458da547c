#include "emulation.inc"

void onnxfold::cuda::emulate_brain(const Op& op, const Plan& plan, const Arguments& arguments) {
  by_statistics<Brain>(op, plan, arguments);
}
