// How one row is normalised by a group of threads. The group is a type: threads of the device that
// sum by shuffles (group.cuh), or their emulation on the host, which runs each step for one thread
// after the other (tests/custom_ops/emulation.inc). What a thread does in a step is a type as well:
// RowThread holds its part of the row in registers, LoopThread reads it again for every step.
//
// The statistics are those of the CPU's kernels, where LayerNorm of a row with a large mean takes two
// passes and corrects them, as every row does here (Chan, Golub, LeVeque 1983),
//     m = mean(x)     c = mean(x - m)     variance = mean((x - m)^2) - c^2     y ~ (x - m) - c
// in float32 throughout.
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

// Adds the values of one vector; in pairs, which halves the chain of dependent additions.
template <int Count>
ONNXFOLD_THREAD void accumulate(Moments& moments, const float (&v)[Count]) {
  if constexpr (Count == 1) {
    moments.sum += v[0];
    moments.squares += v[0] * v[0];
  } else {
    ONNXFOLD_UNROLL
    for (int e = 0; e < Count; e += 2) {
      moments.sum += v[e] + v[e + 1];
      moments.squares += v[e] * v[e] + v[e + 1] * v[e + 1];
    }
  }
}

template <Statistics S>
ONNXFOLD_THREAD float apply(const Coefficients& c, float v) {
  if constexpr (kCentred<S>) v = (v - c.mean) - c.correction;
  return S == Statistics::CENTER ? v : v * c.factor;
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
  const Moments first = group.template sum<0, kSum, !kCentred<kStatistics>>(
      [&](Thread& thread) { return thread.first(); });
  Coefficients c = {0.0f, 0.0f, 1.0f, 0.0f};
  if constexpr (kCentred<kStatistics>) {
    constexpr bool kLayer = kStatistics == Statistics::LAYER;
    c.mean = first.sum * inverse;
    const Moments second = group.template sum<1, true, kLayer>(
        [&](Thread& thread) { return thread.second(c.mean); });
    c.correction = second.sum * inverse;
    const float variance = second.squares * inverse - c.correction * c.correction;
    // Not fmaxf, which would turn a NaN into 0.
    if (kLayer) c.factor = reciprocal_root((variance < 0.0f ? 0.0f : variance) + arguments.epsilon);
  } else if constexpr (kShortened<kStatistics>) {
    const float squares = first.squares + first.sum * first.sum;
    c.factor = reciprocal_root(squares * inverse + arguments.epsilon);
    c.missing = -first.sum * c.factor;
  } else {
    c.factor = reciprocal_root(first.squares * inverse + arguments.epsilon);
  }
  group.each([&](Thread& thread, int, int) { thread.write(arguments, c); });
}

}  // namespace cuda
}  // namespace onnxfold
