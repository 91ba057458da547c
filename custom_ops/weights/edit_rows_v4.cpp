// Compiled with -march=x86-64-v4.
#define ONNXFOLD_ISA v4
#include "edit_rows.inc"
