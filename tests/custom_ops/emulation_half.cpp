#include "emulation.inc"

void onnxfold::cuda::emulate_half(const Op& op, const Plan& plan, const Arguments& arguments) {
  by_statistics<Half>(op, plan, arguments);
}
