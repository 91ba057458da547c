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

// Finishes an op whose result is not a plain norm: the scales of rows alone, or codes.
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

// Of a row whose mean the op subtracts, or of a part of it.
struct Spread {
  float mean;
  float correction;  // to be added to the mean
  float variance;
};

// inverse: 1 / n.
template <class Group>
ONNXFOLD_THREAD Spread spread_of(Group& group, float inverse) {
  using Thread = typename Group::Thread;
  constexpr bool kLayer = Thread::kStatistics == Statistics::LAYER;
  const Moments first = group.template sum<0, true, kLayer>(
      [&](Thread& thread) { return thread.template first<true, kLayer>(); });
  const float mean = first.sum * inverse;
  Spread spread = {0.0f, mean, first.squares * inverse - mean * mean};
  // NaN is not near, nor is a row of which only the squares about 0 overflow. Rows that share a warp
  // take the second pass together, for its shuffles; a row that is near keeps what it had, lest its
  // bits depend on its neighbours.
  const bool near = kLayer && mean * mean <= spread.variance && spread.variance < INFINITY;
  if (!kLayer || group.any(!near)) {
    const Moments second = group.template sum<1, true, kLayer>(
        [&](Thread& thread) { return thread.template second<kLayer>(mean); });
    const float correction = second.sum * inverse;
    if (!near) spread = {mean, correction, second.squares * inverse - correction * correction};
  }
  return spread;
}

template <Statistics S>
ONNXFOLD_THREAD Coefficients coefficients_of(const Spread& spread, float epsilon) {
  Coefficients c = {spread.mean, spread.correction, 1.0f, 0.0f};
  // Not fmaxf, which would turn a NaN into 0.
  if (S == Statistics::LAYER)
    c.factor = reciprocal_root((spread.variance < 0.0f ? 0.0f : spread.variance) + epsilon);
  return c;
}

template <class Group>
ONNXFOLD_THREAD Moments moments_of(Group& group) {
  using Thread = typename Group::Thread;
  constexpr bool kSum = kShortened<Thread::kStatistics>;
  return group.template sum<0, kSum, true>(
      [&](Thread& thread) { return thread.template first<kSum, true>(); });
}

// inverse: 1 / n, or 1 / (n + 1) where an element of the row is not stored.
template <Statistics S>
ONNXFOLD_THREAD Coefficients coefficients_of(const Moments& m, float inverse, float epsilon) {
  const float squares = kShortened<S> ? m.squares + m.sum * m.sum : m.squares;
  const float factor = reciprocal_root(squares * inverse + epsilon);
  return {0.0f, 0.0f, factor, -m.sum * factor};
}

// inverse: as above.
template <class Group>
ONNXFOLD_THREAD void normalise(Group& group, const Arguments& arguments, int64_t row,
                               float inverse) {
  using Thread = typename Group::Thread;
  constexpr Statistics kStatistics = Thread::kStatistics;
  group.each([&](Thread& thread, int rank, int threads) {
    thread.load(arguments, row, rank, threads);
  });
  float epsilon = arguments.epsilon;
  if constexpr (Thread::kExtended)
    if (arguments.row_epsilon != nullptr) epsilon = number_of(arguments.row_epsilon, arguments, row);
  Coefficients c = {0.0f, 0.0f, 1.0f, 0.0f};
  if constexpr (kCentred<kStatistics>)
    c = coefficients_of<kStatistics>(spread_of(group, inverse), epsilon);
  else if constexpr (kStatistics == Statistics::ROW)
    c.factor = number_of(arguments.row_scale, arguments, row);
  else
    c = coefficients_of<kStatistics>(moments_of(group), inverse, epsilon);
  if constexpr (Thread::kExtended)
    if (finish_other(group, arguments, row, c)) return;
  group.each([&](Thread& thread, int, int) { thread.write(arguments, c); });
}

// A row that several groups share, each a part of it: first every part is measured, then, by other
// groups, every part is written. Partial is what the first leave for the second.
struct Partial {
  Spread spread;    // where the op subtracts a mean, the part's own
  Moments moments;  // elsewhere
};

struct Parts {
  Partial* partials;  // [rows, count]
  int count;          // no more than a group has threads
  int64_t length;     // of a part but the last, in elements: whole vectors
};

ONNXFOLD_THREAD float elements_of(const Parts& parts, int part, int64_t size) {
  const int64_t left = size - part * parts.length;
  return static_cast<float>(left < parts.length ? left : parts.length);
}

template <class Group>
ONNXFOLD_THREAD void measure_part(Group& group, const Arguments& arguments, int64_t row, int part,
                                  const Parts& parts) {
  constexpr Statistics kStatistics = Group::Thread::kStatistics;
  group.each([&](auto& thread, int rank, int threads) {
    thread.load_part(arguments, row, rank, threads, parts, part);
  });
  Partial partial = {};
  if constexpr (kCentred<kStatistics>)
    partial.spread = spread_of(group, 1.0f / elements_of(parts, part, arguments.size));
  else
    partial.moments = moments_of(group);
  group.each([&](auto&, int rank, int) {
    if (rank == 0) parts.partials[row * parts.count + part] = partial;
  });
}

// Each thread has one part's: its means, weighted by its share of the row's elements, or its sums.
// The spread is about a mean of the means, with a correction as that of one group has (Chan, Golub,
// LeVeque 1983, for many parts at once).
template <class Group>
ONNXFOLD_THREAD Spread combined_spread(Group& group) {
  const float mean =
      group
          .template sum<0, true, false>([](const auto& thread) {
            const Spread& s = thread.partial.spread;
            return Moments{thread.weight * (s.mean + s.correction), 0.0f};
          })
          .sum;
  const Moments about = group.template sum<1, true, true>([&](const auto& thread) {
    const Spread& s = thread.partial.spread;
    const float distance = (s.mean - mean) + s.correction;
    return Moments{thread.weight * distance,
                   thread.weight * (s.variance + distance * distance)};
  });
  return {mean, about.sum, about.squares - about.sum * about.sum};
}

// inverse: as of normalise.
template <class Group>
ONNXFOLD_THREAD void normalise_part(Group& group, const Arguments& arguments, int64_t row, int part,
                                    const Parts& parts, float inverse) {
  constexpr Statistics kStatistics = Group::Thread::kStatistics;
  group.each([&](auto& thread, int rank, int threads) {
    thread.load_part(arguments, row, rank, threads, parts, part);
    const bool has = rank < parts.count;
    thread.partial = has ? parts.partials[row * parts.count + rank] : Partial{};
    thread.weight = has ? elements_of(parts, rank, arguments.size) * inverse : 0.0f;
  });
  Coefficients c = {};
  if constexpr (kCentred<kStatistics>)
    c = coefficients_of<kStatistics>(combined_spread(group), arguments.epsilon);
  else
    c = coefficients_of<kStatistics>(group.template sum<0, kShortened<kStatistics>, true>(
                                         [](const auto& thread) { return thread.partial.moments; }),
                                     inverse, arguments.epsilon);
  group.each([&](auto& thread, int, int) { thread.write(arguments, c); });
}

}  // namespace cuda
}  // namespace onnxfold
