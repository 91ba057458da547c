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

//
// `Extended` has what few ops need: a scale or an epsilon for each row, activations, codes. It is never
// shifted: rows of whole vectors are what is quantised.
// `Block`: a block has one row, and up to 1024 threads, which leaves few registers for each.
template <class T, Statistics S, bool Residual, int Vectors, bool Shifted, bool Extended, bool Block>
class RowThread {
 public:
  using Element = T;
  static constexpr Statistics kStatistics = S;
  static constexpr bool kExtended = Extended;
  static_assert(!Shifted || !Extended, "rows of whole vectors");

  // row: one past the last, too, for a thread that has none but takes part in the sums.
  // All of x and residual is read before anything is written, which may be over them.
  ONNXFOLD_THREAD void load(const Arguments& a, int64_t row, int rank, int threads) {
    // Of 32 bits, as plan_rows sees to.
    row_ = static_cast<unsigned>(row);
    row_bytes_ = static_cast<unsigned>(a.size) * static_cast<unsigned>(sizeof(T));
    size_ = row_ < static_cast<unsigned>(a.rows) ? static_cast<int>(a.size) : 0;
    start_ = Shifted ? static_cast<int64_t>(uint64_t{row_} * static_cast<unsigned>(size_)) : 0;
    const int shift = Shifted ? static_cast<int>(start_) & (kWidth - 1) : 0;
    first_ = rank * kWidth - shift;
    step_ = threads * kWidth;
    const int64_t end = a.rows * a.size;
    const T* x = row_of(static_cast<const T*>(a.x));
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) v_[k] = read(x, k, end);
    Packed residual[Vectors];
    if constexpr (Residual) {
      const T* from = row_of(static_cast<const T*>(a.residual));
      ONNXFOLD_UNROLL
      for (int k = 0; k < Vectors; ++k) residual[k] = read(from, k, end);
    }
    if constexpr (kAffineWithX) read_affine(a);
    if constexpr (Residual) add(a, residual, row);
    if constexpr (!Extended && kAffine && !kAffineWithX) read_affine(a);
  }

  template <bool Sum, bool Squares>
  ONNXFOLD_THREAD Moments first() const {
    Moments moments = {0.0f, 0.0f};
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      Values<T> x = unpack<T>(v_[k]);
      if constexpr (Shifted) keep_inside(x, k);
      accumulate<Sum, Squares>(moments, x.v);
    }
    return moments;
  }

  template <bool Squares>
  ONNXFOLD_THREAD Moments second(float mean) const {
    Moments moments = {0.0f, 0.0f};
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if (!touches(k)) continue;
      Values<T> x = unpack<T>(v_[k]);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) x.v[e] -= mean;
      if constexpr (Shifted) keep_inside(x, k);
      accumulate<true, Squares>(moments, x.v);
    }
    return moments;
  }

  // What the op has is asked once for the row: asked for each vector, the instructions for operands
  // that it lacks are issued all the same, with a false predicate. A bias comes with a scale.
  ONNXFOLD_THREAD void write(const Arguments& a, const Coefficients& c) {
    if constexpr (Extended) return write_extended(a, c);
    if constexpr (!kAffine) return write_as<false, false>(a, c);
    if (a.scale == nullptr) return write_as<false, false>(a, c);
    if (a.bias == nullptr) return write_as<true, false>(a, c);
    write_as<true, true>(a, c);
  }

  // Of y, rounded to T; NaN is passed over.
  ONNXFOLD_THREAD float largest(const Arguments& a, const Coefficients& c) const {
    float most = 0.0f;
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if (!touches(k)) continue;
      const Values<T> y = unpack<T>(finished(a, c, k));
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) most = fmaxf(most, fabsf(y.v[e]));
    }
    return most;
  }

  ONNXFOLD_THREAD void write_codes(const Arguments& a, const Coefficients& c,
                                   const Steps& steps) const {
    uint8_t* to = row_at(static_cast<uint8_t*>(a.y), row_, static_cast<unsigned>(size_));
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if (!touches(k)) continue;
      const Values<T> y = unpack<T>(finished(a, c, k));
      CodeWords words = {};
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) words.word[e / 4] |= code_of(steps, y.v[e]) << (e % 4 * 8);
      *reinterpret_cast<CodeWords*>(to + at(k)) = words;
    }
  }

 private:
  static constexpr int kWidth = kPerVector<T>;
  // The codes of a vector.
  struct alignas(kWidth) CodeWords {
    uint32_t word[kWidth / 4];
  };
  // No scale or bias of 8 vectors: those of x alone fill 32 registers (plan.cpp).
  static constexpr bool kAffine = Vectors < 8;
  // So many vectors of scale and bias are loaded before the sums of the row (early), so that their
  // latencies pass with those of x, and so many before the first one is written; as many are then kept
  // ahead. All of them, where there are registers: x, scale and bias of 4 vectors fill 48, and a thread
  // of a block of 1024 has 64. Elements of 2 bytes are widened as well, and there it is what ptxas finds
  // room for without a spill, for 8.0 as for 12.0: RMSNorm has one sum, the others two. Shifted vectors
  // are gathered by element.
  static constexpr bool kTight = Block && Vectors == 4 && !Shifted && sizeof(T) == 2;
  static constexpr bool kLean = S == Statistics::RMS;
  static constexpr int kAll = Shifted && Vectors > 1 ? 0 : Vectors;
  // With x and residual, whose sum waits for both: behind it they are a latency of their own. With more
  // vectors that was slower where several rows lie in the cache (gpu_variants.csv).
  static constexpr bool kAffineWithX = !Extended && kAffine && (!Residual || Vectors == 1);
  template <bool Bias>
  static constexpr int kScalesEarly = !kTight ? kAll : Bias ? (kLean ? 2 : 0) : (kLean ? 4 : 1);
  template <bool Bias>
  static constexpr int kScalesAhead = !kTight ? kAll : Bias ? (kLean ? 2 : 1) : 4;
  static constexpr int kBiasesEarly = !kTight ? kAll : kLean ? 1 : 0;
  static constexpr int kBiasesAhead = !kTight ? kAll : 1;

  template <class Pointer>
  ONNXFOLD_THREAD Pointer row_of(Pointer tensor) const {
    return row_at(tensor, row_, row_bytes_);
  }

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
  ONNXFOLD_THREAD Packed read(const T* row, int k, int64_t end) const {
    if (!touches(k)) return Packed{};
    const T* from = row + at(k);
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
    if (a.scale == nullptr) return;
    if (a.bias == nullptr) return read_constants(scale_, a.scale, 0, kScalesEarly<false>);
    read_constants(scale_, a.scale, 0, kScalesEarly<true>);
    read_constants(bias_, a.bias, 0, kBiasesEarly);
  }

  // Of the vectors from begin to end, if there are so many.
  ONNXFOLD_THREAD void read_constants(Packed (&to)[Vectors], const void* row, int begin,
                                      int end) const {
    ONNXFOLD_UNROLL
    for (int k = begin; k < end && k < Vectors; ++k)
      if (touches(k)) to[k] = constants(row, k);
  }

  template <bool Scale, bool Bias>
  ONNXFOLD_THREAD void write_as(const Arguments& a, const Coefficients& c) {
    constexpr int kAhead = kScalesAhead<Bias>;
    T* to = row_of(static_cast<T*>(a.y));
    if constexpr (Scale) read_constants(scale_, a.scale, kScalesEarly<Bias>, kAhead);
    if constexpr (Bias) read_constants(bias_, a.bias, kBiasesEarly, kBiasesAhead);
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if constexpr (Scale) read_constants(scale_, a.scale, k + kAhead, k + kAhead + 1);
      if constexpr (Bias) read_constants(bias_, a.bias, k + kBiasesAhead, k + kBiasesAhead + 1);
      if (!touches(k)) continue;
      Values<T> y = unpack<T>(v_[k]);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) y.v[e] = apply<S>(c, y.v[e]);
      if constexpr (Scale) {
        const Values<T> scale = unpack<T>(scale_[k]);
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) y.v[e] *= scale.v[e];
      }
      if constexpr (Bias) {
        const Values<T> bias = unpack<T>(bias_[k]);
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) y.v[e] += bias.v[e];
      }
      put(to, k, pack<T>(y));
    }
  }

  // y, as the op would write it.
  ONNXFOLD_THREAD Packed finished(const Arguments& a, const Coefficients& c, int k) const {
    Values<T> y = unpack<T>(v_[k]);
    ONNXFOLD_UNROLL
    for (int e = 0; e < kWidth; ++e) y.v[e] = apply<S>(c, y.v[e]);
    if (a.scale != nullptr) {
      const Values<T> scale = unpack<T>(constants(a.scale, k));
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) y.v[e] *= scale.v[e];
    }
    if (a.bias != nullptr) {
      const Values<T> bias = unpack<T>(constants(a.bias, k));
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) y.v[e] += bias.v[e];
    }
    if constexpr (S == Statistics::ROW) {
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) y.v[e] = activated(y.v[e], a.activation);
    }
    return pack<T>(y);
  }

  ONNXFOLD_THREAD void write_extended(const Arguments& a, const Coefficients& c) const {
    T* to = row_of(static_cast<T*>(a.y));
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k)
      if (touches(k)) put(to, k, finished(a, c, k));
  }

  ONNXFOLD_THREAD void add(const Arguments& a, const Packed (&residual)[Vectors], int64_t row) {
    float factor = 1.0f;
    if constexpr (Extended)
      if (a.row_scale != nullptr) factor = number_of(a.row_scale, a, row);
    if (a.linear_bias == nullptr)
      add_as<false>(a, residual, factor);
    else
      add_as<true>(a, residual, factor);
    if (a.sum == nullptr) return;
    T* to = row_of(static_cast<T*>(a.sum));
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k)
      if (touches(k)) put(to, k, v_[k]);
  }

  // The sum in float32, rounded once; what is normalised is what is stored.
  template <bool LinearBias>
  ONNXFOLD_THREAD void add_as(const Arguments& a, const Packed (&residual)[Vectors], float factor) {
    ONNXFOLD_UNROLL
    for (int k = 0; k < Vectors; ++k) {
      if (!touches(k)) continue;
      Values<T> s = unpack<T>(v_[k]);
      if constexpr (Extended) {
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) s.v[e] *= factor;
      }
      if constexpr (LinearBias) {
        const Values<T> b = unpack<T>(constants(a.linear_bias, k));
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) s.v[e] += b.v[e];
      }
      const Values<T> r = unpack<T>(residual[k]);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) s.v[e] += r.v[e];
      v_[k] = pack<T>(s);
    }
  }

  ONNXFOLD_THREAD void put(T* row, int k, Packed packed) const {
    T* to = row + at(k);
    if (whole(k)) return store_vector(to, packed);
    const Elements<T> elements = bits_as<Elements<T>>(packed);
    ONNXFOLD_UNROLL
    for (int e = 0; e < kWidth; ++e)
      if (inside(k, e)) to[e] = elements.v[e];
  }

  Packed v_[Vectors];
  Packed scale_[Vectors];
  Packed bias_[Vectors];
  int64_t start_;  // the row's first element in the tensor, where rows are shifted
  unsigned row_, row_bytes_;
  int size_, first_, step_;
};

}  // namespace cuda
}  // namespace onnxfold
