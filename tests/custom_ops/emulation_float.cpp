#include "emulation.inc"

void onnxfold::cuda::emulate_float(const Op& op, const Plan& plan, const Arguments& arguments) {
  by_statistics<float>(op, plan, arguments);
}
