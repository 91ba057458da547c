#include "plan.h"

namespace onnxfold {
namespace cuda {

namespace {

constexpr int64_t kVectorBytes = 16;
constexpr int64_t kMostBlocks = 2147483647;  // of a grid's first dimension
constexpr int64_t kMostRows = kMostBlocks;   // whose numbers the kernels hold in 32 bits

int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0;  // null is
}

// Whole warps that hold this many vectors, so many for each thread.
int block_of(int64_t row_vectors, int vectors) {
  return static_cast<int>(divided_up(divided_up(row_vectors, vectors), 32) * 32);
}

Plan short_rows(int threads_per_row, int vectors) {
  return {threads_per_row, vectors, false, false, kShortRowThreads, 0};
}

Plan row_in_block(int64_t row_vectors, int vectors) {
  return {0, vectors, false, false, block_of(row_vectors, vectors), 0};
}

// How many rows a multiprocessor has at once, of two at most. Most have
// 1536 threads or more.
int resident(const Plan& plan, bool shifted) {
  const int registers = plan.vectors == 2 ? kRegisters<2, false, false, 2>
                        : shifted         ? kRegisters<1, true, false, 2>
                                          : kRegisters<1, false, false, 2>;
  return 2 * plan.threads <= 1536 && 2 * plan.threads * registers <= kAllRegisters ? 2 : 1;
}

// The table. row_vectors: how many vectors of 16 bytes a row touches.
//
// Two limits decide. Memory is busy only while about 25 KB for each multiprocessor are under way
// (4.8 TB/s, 0.7 us and 132 of them), so threads that are resident, 2048 at best, must have read
// some vectors each before they wait: 4 are 64 KB at 1024 threads. And one row takes as long as its
// chain of loads, conversions, additions and shuffles, which is all that counts where an SM has
// a row or two and cannot hide it behind others: there more threads with fewer vectors win.
// plain: neither shifted nor extended, which leaves registers for more vectors; bare: without a scale
// or bias, too; most: the largest block of threads with 4 vectors.
Plan in_registers(int64_t row_vectors, bool shifted, bool plain, bool bare, int64_t most, int64_t rows,
                  int multiprocessors) {
  // Eight threads: three shuffles for each sum, and 16 rows in a block; a whole warp would leave at
  // least half of its lanes without a vector.
  if (row_vectors <= 8) return short_rows(8, 1);
  if (row_vectors <= 16) return short_rows(8, 2);
  // A warp: five shuffles, no barrier.
  if (row_vectors <= 32) return short_rows(32, 1);
  if (row_vectors <= 64) return short_rows(32, 2);
  // Shifted vectors need so many registers that no more than two of them are worth a thread.
  if (row_vectors <= 128 && !shifted) return short_rows(32, 4);
  const int64_t sms = multiprocessors;
  if (row_vectors <= 256) {
    // 8 warps of 8 vectors are 32 KB under way; with fewer rows than that, four warps share a row.
    // Beside 8 vectors of x there is no room to load those of a scale before the sums: two warps.
    if (rows < 8 * sms || !plain) return row_in_block(row_vectors, 2);
    return bare ? short_rows(32, 8) : row_in_block(row_vectors, 4);
  }
  // Up to two rows on each multiprocessor are too few to hide one behind the other: they are to be
  // quick, and all at once.
  const Plan quick = row_in_block(row_vectors, row_vectors <= 1024 ? 1 : 2);
  if (row_vectors <= 2048 && rows <= sms * resident(quick, shifted)) return quick;
  if (row_vectors <= 4 * most) return row_in_block(row_vectors, 4);
  return {0, 0, false, false, 0, 0};
}

// The largest block of threads with 4 vectors.
int64_t most_threads(bool shifted, bool extended, ElementType type) {
  if (extended) return kMostThreads<4, false, true, 2>;
  if (!shifted) return kMostThreads<4, false, false, 2>;
  return type == ElementType::FLOAT ? kMostThreads<4, true, false, 4> : kMostThreads<4, true, false, 2>;
}

// A row for each block, read again for every step. Blocks take further rows where there are more
// rows than blocks in a grid.
Plan loop(int64_t rows, int64_t steps, bool wide) {
  const int64_t threads = divided_up(steps > 0 ? steps : 1, 32) * 32;
  const int64_t most = kMostThreads<0, false, false, 2>;
  return {0, 0, false, wide, static_cast<int>(threads < most ? threads : most),
          rows < kMostBlocks ? rows : kMostBlocks};
}

// Where there are fewer rows than the device holds blocks, blocks share a row: a multiprocessor alone
// reads some 40 GB/s, a block of 512 threads with four loads each at a time. Those of whole vectors
// fill it with their registers, of the others it holds two. A part is a round of loads at least, and
// rows that are no longer than two are left alone: splitting costs a second launch.
Plan split(Plan plan, int64_t rows, int64_t steps, int multiprocessors) {
  constexpr int64_t kRound = 4 * kMostThreads<0, false, false, 2>;
  if (steps <= 2 * kRound) return plan;
  const int64_t room = int64_t{multiprocessors} * (plan.wide ? 1 : 2) / rows;
  int64_t parts = divided_up(steps, kRound);
  if (parts > room) parts = room;
  if (parts > plan.threads) parts = plan.threads;
  if (parts < 2) return plan;
  plan.parts = static_cast<int>(divided_up(steps, divided_up(steps, parts)));  // none is empty
  plan.blocks = rows * plan.parts;
  return plan;
}

}  // namespace

bool extended(const Op& op) {
  return op.statistics == Statistics::ROW || op.row_scale || op.row_epsilon ||
         op.output != Output::NORM;
}

Plan plan_rows(const Op& op, ElementType type, const Arguments& a, int multiprocessors) {
  const bool full = op.statistics == Statistics::CRMS_FULL;
  const int64_t width = kVectorBytes / (type == ElementType::FLOAT ? 4 : 2);
  // Rows of no elements have a scale each all the same.
  const bool written = a.size > 0 || full || op.output == Output::SCALE ||
                       op.output == Output::QUANTIZED_ROWS;
  if (a.rows == 0 || !written) return {0, 0, false, false, 0, 0};
  const bool tensors_aligned = aligned(a.x) && aligned(a.residual) && aligned(a.y) && aligned(a.sum);
  const bool constants_aligned = aligned(a.scale) && aligned(a.bias) && aligned(a.linear_bias);
  const bool whole = a.size % width == 0;
  // A row of CRMS_FULL is written at another alignment than it is read: neighbouring threads write
  // neighbouring elements, where a thread's vector would be as many strided stores.
  const bool shifted = !whole || !constants_aligned;
  // A shifted row begins up to width - 1 elements into its first vector.
  const int64_t vectors = (a.size + (shifted ? 2 * width - 2 : 0)) / width;
  const bool plain = !shifted && !extended(op);
  Plan plan = {0, 0, false, false, 0, 0};
  if (tensors_aligned && !full && !(shifted && extended(op)) && a.rows <= kMostRows && a.size > 0)
    plan = in_registers(vectors, shifted, plain, plain && a.scale == nullptr,
                        most_threads(shifted, extended(op), type), a.rows, multiprocessors);
  if (plan.vectors == 0) {
    const bool wide = tensors_aligned && !full && plain;
    const int64_t steps = wide ? vectors : a.size;
    const Plan one = loop(a.rows, steps, wide);
    return extended(op) ? one : split(one, a.rows, steps, multiprocessors);
  }
  const int64_t rows_per_block =
      plan.threads_per_row > 0 ? plan.threads / plan.threads_per_row : 1;
  plan.blocks = divided_up(a.rows, rows_per_block);
  plan.shifted = shifted;
  return plan;
}

Plan unsplit(Plan plan) {
  plan.blocks /= plan.parts;
  plan.parts = 1;
  return plan;
}

int64_t part_length(ElementType type, int64_t size, const Plan& plan) {
  const int64_t width = plan.wide ? kVectorBytes / (type == ElementType::FLOAT ? 4 : 2) : 1;
  return divided_up(divided_up(size, width), plan.parts) * width;
}

float inverse_size(const Op& op, int64_t size) {
  const bool shortened =
      op.statistics == Statistics::CRMS || op.statistics == Statistics::CRMS_FULL;
  return static_cast<float>(1.0 / static_cast<double>(size + (shortened ? 1 : 0)));
}

}  // namespace cuda
}  // namespace onnxfold
