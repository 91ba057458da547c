// Which of the compiled instruction sets runs on this machine.
#ifndef ONNXFOLD_ISA_H_
#define ONNXFOLD_ISA_H_

#if defined(__x86_64__)
#include <stdlib.h>
#include <string.h>

#include <atomic>

namespace onnxfold {

// The level of x86-64, 2 to 4; the environment variable ONNXFOLD_ISA (v2, v3) may lower it.
inline int ask_isa_level() {
  __builtin_cpu_init();
  // Features rather than the names of levels, which GCC 11 and Clang 14 do not know. "f16c", "lzcnt"
  // and "movbe" are no names of theirs either; every processor with AVX2 and BMI2 has the three.
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  int level = v4 ? 4 : v3 ? 3 : 2;
  const char* asked = getenv("ONNXFOLD_ISA");
  if (asked != nullptr && strlen(asked) == 2 && asked[0] == 'v') {
    const int ceiling = asked[1] - '0';
    if (ceiling >= 2 && ceiling < level) level = ceiling;
  }
  return level;
}

// The same, asked once: threads that come first at the same time find the same. No static that is
// initialised at run time, which would need the C++ runtime and with it a new libc.
inline int isa_level() {
  static std::atomic<int> known{0};
  int level = known.load(std::memory_order_relaxed);
  if (level == 0) {
    level = ask_isa_level();
    known.store(level, std::memory_order_relaxed);
  }
  return level;
}

}  // namespace onnxfold
#endif

#endif  // ONNXFOLD_ISA_H_
