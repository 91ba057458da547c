// One thread's part of a row that the group holds in registers, as it is stored: 4 registers for
// each vector, converted again in each step.
//
// The vectors lie at multiples of 16 bytes in memory. Where rows do not (`Shifted`: their length is
// no multiple of a vector, as that of CRMSNorm's rows), the first and last vector of a row hold
// elements of its neighbours too: these are read, ignored, and never written.
#pragma once

#include "algorithm.h"

namespace onnxfold {
namespace cuda {

template <class T, Statistics S, bool Residual, int Vectors, bool Shifted>
class RowThread {
 public:
  static constexpr Statistics kStatistics = S;

  // row: one past the last, too, for a thread that has none but takes part in the sums.
  // All of x and residual is read before anything is written, which may be over them.
  ONNXFOLD_THREAD void load(const Arguments& a, int64_t row, int rank, int threads) {
    const bool exists = row < a.rows;
    size_ = exists ? static_cast<int>(a.size) : 0;
    start_ = exists ? row * a.size : 0;
    const int shift = Shifted ? static_cast<int>(start_) & (kWidth - 1) : 0;
    first_ = rank * kWidth - shift;
    step_ = threads * kWidth;
    const int64_t end = a.rows * a.size;
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) v_[k] = read(a.x, k, end);
    if constexpr (kEarly) read_affine(a);
    if constexpr (Residual) add(a, end);
  }

  ONNXFOLD_THREAD Moments first() const {
    Moments moments = {0.0f, 0.0f};
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      Values<T> x = unpack<T>(v_[k]);
      if constexpr (Shifted) keep_inside(x, k);
      accumulate(moments, x.v);
    }
    return moments;
  }

  ONNXFOLD_THREAD Moments second(float mean) const {
    Moments moments = {0.0f, 0.0f};
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if (!touches(k)) continue;
      Values<T> x = unpack<T>(v_[k]);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) x.v[e] -= mean;
      if constexpr (Shifted) keep_inside(x, k);
      accumulate(moments, x.v);
    }
    return moments;
  }

  ONNXFOLD_THREAD void write(const Arguments& a, const Coefficients& c) const {
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if (!touches(k)) continue;
      Values<T> y = unpack<T>(v_[k]);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) y.v[e] = apply<S>(c, y.v[e]);
      if (a.scale != nullptr) {
        const Values<T> scale = unpack<T>(kEarly ? scale_[k % kKept] : constants(a.scale, k));
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) y.v[e] *= scale.v[e];
      }
      if (a.bias != nullptr) {
        const Values<T> bias = unpack<T>(kEarly ? bias_[k % kKept] : constants(a.bias, k));
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) y.v[e] += bias.v[e];
      }
      put(a.y, k, pack<T>(y));
    }
  }

 private:
  static constexpr int kWidth = kPerVector<T>;
  // scale and bias are read before the reduction, so that both latencies pass together, where they
  // fit: x, scale and bias in 4 registers for each vector leave room in the 64 that a thread of a
  // block of 1024 has at 2 vectors (24), not at 4 (48 and as much again to compute with); shifted
  // vectors, gathered by element, at 1. Few rows get few vectors for each thread (plan.cpp), and
  // are those that wait for latencies.
  static constexpr bool kEarly = Vectors <= (Shifted ? 1 : 2);
  static constexpr int kKept = kEarly ? Vectors : 1;

  // The place in the row of the first element of the thread's vector k.
  ONNXFOLD_THREAD int at(int k) const { return first_ + k * step_; }
  ONNXFOLD_THREAD bool touches(int k) const {
    return at(k) < size_ && (!Shifted || at(k) > -kWidth);
  }
  ONNXFOLD_THREAD bool whole(int k) const {
    return !Shifted || (at(k) >= 0 && at(k) + kWidth <= size_);
  }
  ONNXFOLD_THREAD bool inside(int k, int e) const {
    return static_cast<unsigned>(at(k) + e) < static_cast<unsigned>(size_);
  }

  ONNXFOLD_THREAD void keep_inside(Values<T>& values, int k) const {
    ONNXFOLD_UNROLL
    for (int e = 0; e < kWidth; ++e) values.v[e] = inside(k, e) ? values.v[e] : 0.0f;
  }

  // end: of the tensor, whose last vector may be no whole one.
  ONNXFOLD_THREAD Packed read(const void* tensor, int k, int64_t end) const {
    if (!touches(k)) return Packed{};
    const T* from = static_cast<const T*>(tensor) + (start_ + at(k));
    if (!Shifted || start_ + at(k) + kWidth <= end) return load_vector(from);
    Elements<T> elements = {};
    ONNXFOLD_UNROLL
    for (int e = 0; e < kWidth; ++e)
      if (inside(k, e)) elements.v[e] = from[e];
    return bits_as<Packed>(elements);
  }

  ONNXFOLD_THREAD Packed constants(const void* row, int k) const {
    const T* from = static_cast<const T*>(row);
    if constexpr (Shifted) {
      Elements<T> elements = {};
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e)
        if (inside(k, e)) elements.v[e] = load_constant(from + at(k) + e);
      return bits_as<Packed>(elements);
    } else {
      return load_constant_vector(from + at(k));
    }
  }

  ONNXFOLD_THREAD void read_affine(const Arguments& a) {
    ONNXFOLD_UNROLL
    for (int k = 0; k < kKept; ++k) {
      if (a.scale != nullptr && touches(k)) scale_[k] = constants(a.scale, k);
      if (a.bias != nullptr && touches(k)) bias_[k] = constants(a.bias, k);
    }
  }

  // The sum in float32, rounded once; what is normalised is what is stored.
  ONNXFOLD_THREAD void add(const Arguments& a, int64_t end) {
    Packed residual[Vectors];
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) residual[k] = read(a.residual, k, end);
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if (!touches(k)) continue;
      Values<T> s = unpack<T>(v_[k]);
      if (a.linear_bias != nullptr) {
        const Values<T> b = unpack<T>(constants(a.linear_bias, k));
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) s.v[e] += b.v[e];
      }
      const Values<T> r = unpack<T>(residual[k]);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) s.v[e] += r.v[e];
      v_[k] = pack<T>(s);
      if (a.sum != nullptr) put(a.sum, k, v_[k]);
    }
  }

  ONNXFOLD_THREAD void put(void* tensor, int k, Packed packed) const {
    T* to = static_cast<T*>(tensor) + (start_ + at(k));
    if (whole(k)) return store_vector(to, packed);
    const Elements<T> elements = bits_as<Elements<T>>(packed);
    ONNXFOLD_UNROLL
    for (int e = 0; e < kWidth; ++e)
      if (inside(k, e)) to[e] = elements.v[e];
  }

  Packed v_[Vectors];
  Packed scale_[kKept];
  Packed bias_[kKept];
  int64_t start_;  // the row's first element in the tensor
  int size_, first_, step_;
};

}  // namespace cuda
}  // namespace onnxfold
