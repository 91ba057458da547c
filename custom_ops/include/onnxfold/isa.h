// Which of the compiled instruction sets runs on this machine.
#ifndef ONNXFOLD_ISA_H_
#define ONNXFOLD_ISA_H_

#if defined(__x86_64__)
#include <stdlib.h>
#include <string.h>

namespace onnxfold {

// The level of x86-64, 2 to 4; the environment variable ONNXFOLD_ISA (v2, v3) may lower it.
inline int isa_level() {
  __builtin_cpu_init();
  int level = 2;
  if (__builtin_cpu_supports("x86-64-v3")) level = 3;
  if (level == 3 && __builtin_cpu_supports("x86-64-v4")) level = 4;
  const char* asked = getenv("ONNXFOLD_ISA");
  if (asked != nullptr && strlen(asked) == 2 && asked[0] == 'v') {
    const int ceiling = asked[1] - '0';
    if (ceiling >= 2 && ceiling < level) level = ceiling;
  }
  return level;
}

}  // namespace onnxfold
#endif

#endif  // ONNXFOLD_ISA_H_
