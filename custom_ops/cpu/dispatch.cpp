// Which of the compiled instruction sets runs.
#include "onnxfold/isa.h"
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

RowsFunction cpu_rows(const Op& op, ElementType type) {
  const int level = isa_level();
  return level == 4 ? v4::find(op, type) : level == 3 ? v3::find(op, type) : v2::find(op, type);
}

#else

namespace portable {
RowsFunction find(const Op& op, ElementType type);
}

RowsFunction cpu_rows(const Op& op, ElementType type) { return portable::find(op, type); }

#endif

}  // namespace onnxfold
