// Compiled with -march=x86-64-v2.
#define ONNXFOLD_ISA v2
#include "edit_rows.inc"
