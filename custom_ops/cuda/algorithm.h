// How one row is normalised by a group of threads. The group is a type: threads of the device that
// sum by shuffles (group.cuh), or their emulation on the host, which runs each step for one thread
// after the other (tests/custom_ops/emulation.inc). What a thread does in a step is a type as well:
// RowThread holds its part of the row in registers, LoopThread reads it again for every step.
//
// The statistics are those of the CPU's kernels, in float32 throughout. LayerNorm is the two-pass
// algorithm with its correction (Chan, Golub, LeVeque 1983),
//     c = mean(x - m)     variance = mean((x - m)^2) - c^2     y ~ (x - m) - c
// for any m near to the mean. Where mean^2 <= variance, as in most hidden states, 0 is near enough:
// no more than one bit of the variance cancels, and one pass gives both sums. Else m = mean(x).
#pragma once

#include "element.h"

namespace onnxfold {
namespace cuda {

struct Moments {
  float sum;
  float squares;
};

// y ~ ((x - mean) - correction) * factor; `missing` is the last element of CRMS_FULL.
struct Coefficients {
  float mean;
  float correction;
  float factor;
  float missing;
};

template <Statistics S>
constexpr bool kCentred = S == Statistics::LAYER || S == Statistics::CENTER;
template <Statistics S>
constexpr bool kShortened = S == Statistics::CRMS || S == Statistics::CRMS_FULL;

// Of a row beyond the last, 0.
ONNXFOLD_THREAD float number_of(const float* rows, const Arguments& a, int64_t row) {
  return row < a.rows ? rows[row] : 0.0f;
}

// Adds the values of one vector; of the moments, those that are asked for: the instructions of the
// others would be issued.
template <bool Sum, bool Squares, int Count>
ONNXFOLD_THREAD void accumulate(Moments& moments, const float (&v)[Count]) {
  ONNXFOLD_UNROLL
  for (int e = 0; e < Count; ++e) {
    if constexpr (Sum) moments.sum += v[e];
    if constexpr (Squares) moments.squares = v[e] * v[e] + moments.squares;
  }
}

template <Statistics S>
ONNXFOLD_THREAD float apply(const Coefficients& c, float v) {
  if constexpr (kCentred<S>) v = (v - c.mean) - c.correction;
  return S == Statistics::CENTER ? v : v * c.factor;
}

// What an op gives that is no plain norm: the scales of rows alone, or codes.
template <class Group>
ONNXFOLD_THREAD bool finish_other(Group& group, const Arguments& a, int64_t row,
                                  const Coefficients& c) {
  using Thread = typename Group::Thread;
  using T = typename Thread::Element;
  if (a.row_scales != nullptr) {
    group.each([&](Thread&, int rank, int) {
      if (rank == 0 && row < a.rows) a.row_scales[row] = c.factor;
    });
    return true;
  }
  if (a.code == Code::NONE) return false;
  float size = 0.0f;
  if (a.y_scales == nullptr) {
    size = widen(load_constant(static_cast<const T*>(a.y_scale)));
  } else {
    const float most =
        group.template largest<2>([&](const Thread& thread) { return thread.largest(a, c); });
    const float wanted = most / a.levels;
    const T rounded = narrow<T>(wanted > a.least ? wanted : a.least);
    group.each([&](Thread&, int rank, int) {
      if (rank == 0 && row < a.rows) static_cast<T*>(a.y_scales)[row] = rounded;
    });
    size = widen(rounded);
  }
  const Steps steps = steps_of(a, size);
  group.each([&](Thread& thread, int, int) { thread.write_codes(a, c, steps); });
  return true;
}

// inverse: 1 / n, or 1 / (n + 1) where an element of the row is not stored.
template <class Group>
ONNXFOLD_THREAD void normalise(Group& group, const Arguments& arguments, int64_t row,
                               float inverse) {
  using Thread = typename Group::Thread;
  constexpr Statistics kStatistics = Thread::kStatistics;
  constexpr bool kSum = kCentred<kStatistics> || kShortened<kStatistics>;
  group.each([&](Thread& thread, int rank, int threads) {
    thread.load(arguments, row, rank, threads);
  });
  constexpr bool kSquares = kStatistics != Statistics::CENTER;
  constexpr bool kLayer = kStatistics == Statistics::LAYER;
  float epsilon = arguments.epsilon;
  if constexpr (Thread::kExtended)
    if (arguments.row_epsilon != nullptr) epsilon = number_of(arguments.row_epsilon, arguments, row);
  Moments first = {0.0f, 0.0f};
  if constexpr (kStatistics != Statistics::ROW)
    first = group.template sum<0, kSum, kSquares>(
        [&](Thread& thread) { return thread.template first<kSum, kSquares>(); });
  Coefficients c = {0.0f, 0.0f, 1.0f, 0.0f};
  if constexpr (kCentred<kStatistics>) {
    const float mean = first.sum * inverse;
    float variance = first.squares * inverse - mean * mean;
    c.correction = mean;
    // NaN is far. Rows that share a warp take the second pass together, for its shuffles; a row that
    // is not far keeps what it had, lest its bits depend on its neighbours.
    const bool far = !kLayer || !(mean * mean <= variance);
    if (!kLayer || group.any(far)) {
      const Moments second = group.template sum<1, true, kLayer>(
          [&](Thread& thread) { return thread.template second<kLayer>(mean); });
      if (far) {
        c.mean = mean;
        c.correction = second.sum * inverse;
        variance = second.squares * inverse - c.correction * c.correction;
      }
    }
    // Not fmaxf, which would turn a NaN into 0.
    if (kLayer) c.factor = reciprocal_root((variance < 0.0f ? 0.0f : variance) + epsilon);
  } else if constexpr (kShortened<kStatistics>) {
    const float squares = first.squares + first.sum * first.sum;
    c.factor = reciprocal_root(squares * inverse + epsilon);
    c.missing = -first.sum * c.factor;
  } else if constexpr (kStatistics == Statistics::ROW) {
    c.factor = number_of(arguments.row_scale, arguments, row);
  } else {
    c.factor = reciprocal_root(first.squares * inverse + epsilon);
  }
  if constexpr (Thread::kExtended)
    if (finish_other(group, arguments, row, c)) return;
  group.each([&](Thread& thread, int, int) { thread.write(arguments, c); });
}

}  // namespace cuda
}  // namespace onnxfold
