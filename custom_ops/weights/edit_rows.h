// Edits of the rows of a weight: the C interface that onnxfold/weights/native_rows.py describes to ctypes.
#ifndef ONNXFOLD_EDIT_ROWS_H_
#define ONNXFOLD_EDIT_ROWS_H_

#include <stddef.h>
#include <stdint.h>

namespace onnxfold {
namespace weights {

enum Kind : int32_t { kCentre, kScale, kShift };
enum Type : int32_t { kSingle, kHalf, kBFloat16 };

// values: one for each row, or one for each column; none for kCentre, W - mean(W) of each row.
struct Edit {
  int32_t kind;
  int32_t by_row;
  const double* values;
};

// What becomes of the edited rows: rounded to their type, kept as doubles, or the sum of all of them,
// each times its factor.
enum Result : int32_t { kRounded, kWide, kSum };

// `count` rows of `size` elements of `type`, edited in order. factors: one for each row, for kSum.
struct Rows {
  int32_t type;
  int32_t result;
  const void* from;
  void* to;
  size_t count;
  size_t size;
  const Edit* edits;
  size_t edit_count;
  const double* factors;
};

}  // namespace weights
}  // namespace onnxfold

#endif  // ONNXFOLD_EDIT_ROWS_H_
