// Compiled with -march=x86-64-v3.
#define ONNXFOLD_ISA v3
#include "edit_rows.inc"
