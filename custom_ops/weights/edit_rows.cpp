// The exported function: space for a row, and the instruction set of this machine.
#include <stdlib.h>

#include "edit_rows.h"
#include "onnxfold/isa.h"

namespace onnxfold {
namespace weights {

typedef bool (*RunFunction)(const Rows& rows, double* space);

#if defined(__x86_64__)

namespace v2 {
bool run(const Rows& rows, double* space);
}
namespace v3 {
bool run(const Rows& rows, double* space);
}
namespace v4 {
bool run(const Rows& rows, double* space);
}

static RunFunction best() {
  const int level = isa_level();
  return level == 4 ? v4::run : level == 3 ? v3::run : v2::run;
}

#else

namespace portable {
bool run(const Rows& rows, double* space);
}

static RunFunction best() { return portable::run; }

#endif

}  // namespace weights
}  // namespace onnxfold

// 0 where all rows were edited; 1 where one holds, or becomes, a number that is left to Python: then
// nothing is said about the result.
extern "C" __attribute__((visibility("default"))) int32_t onnxfold_edit_rows(
    const onnxfold::weights::Rows* rows) {
  double* space = nullptr;
  if (rows->result != onnxfold::weights::kWide) {
    space = static_cast<double*>(malloc(rows->size * sizeof(double)));
    if (space == nullptr) return 1;
  }
  const bool done = onnxfold::weights::best()(*rows, space);
  free(space);
  return done ? 0 : 1;
}
