// The one object of an architecture that has no choice of instruction sets, such as aarch64.
#define ONNXFOLD_ISA portable
#include "edit_rows.inc"
