// Which of the compiled instruction sets runs; asked once, when the first kernel is looked up.
#include <stdlib.h>
#include <string.h>

#include "onnxfold/kernels.h"

namespace onnxfold {

#if defined(__x86_64__)

namespace v2 {
RowsFunction find(const Op& op, ElementType type);
}
namespace v3 {
RowsFunction find(const Op& op, ElementType type);
}
namespace v4 {
RowsFunction find(const Op& op, ElementType type);
}

namespace {

int best_level() {
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

}  // namespace

RowsFunction cpu_rows(const Op& op, ElementType type) {
  static const int level = best_level();
  return level == 4 ? v4::find(op, type) : level == 3 ? v3::find(op, type) : v2::find(op, type);
}

#else

namespace portable {
RowsFunction find(const Op& op, ElementType type);
}

RowsFunction cpu_rows(const Op& op, ElementType type) { return portable::find(op, type); }

#endif

}  // namespace onnxfold
