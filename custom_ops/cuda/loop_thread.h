// One thread's part of a row of any length and alignment: read again for every step, from the
// caches after the first. `Wide` moves vectors, for rows that are made of whole and aligned ones;
// the other form moves elements, neighbouring threads neighbouring ones.
#pragma once

#include "algorithm.h"

namespace onnxfold {
namespace cuda {

template <class T, Statistics S, bool Residual, bool Wide>
class LoopThread {
 public:
  static constexpr Statistics kStatistics = S;

  ONNXFOLD_THREAD void load(const Arguments& a, int64_t row, int rank, int threads) {
    constexpr int64_t kExtra = S == Statistics::CRMS_FULL ? 1 : 0;
    size_ = a.size;
    first_ = static_cast<int64_t>(rank) * kWidth;
    step_ = static_cast<int64_t>(threads) * kWidth;
    x_ = static_cast<const T*>(a.x) + row * size_;
    residual_ = Residual ? static_cast<const T*>(a.residual) + row * size_ : nullptr;
    linear_bias_ = static_cast<const T*>(a.linear_bias);
    y_ = static_cast<T*>(a.y) + row * (size_ + kExtra);
    // The rounded sum waits in y where it is no output: a thread reads what it wrote itself.
    stash_ = a.sum != nullptr ? static_cast<T*>(a.sum) + row * size_ : y_;
  }

  ONNXFOLD_THREAD Moments first() const {
    return moments([&](int64_t i, Chunk& v) {
      v = get(x_ + i);
      if constexpr (Residual) add(i, v);
    });
  }

  ONNXFOLD_THREAD Moments second(float mean) const {
    const T* from = Residual ? stash_ : x_;
    return moments([&](int64_t i, Chunk& v) {
      v = get(from + i);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) v.v[e] -= mean;
    });
  }

  ONNXFOLD_THREAD void write(const Arguments& a, const Coefficients& c) const {
    const T* from = Residual ? stash_ : x_;
    const T* scale = static_cast<const T*>(a.scale);
    const T* bias = static_cast<const T*>(a.bias);
    for (int64_t i = first_; i < size_; i += step_) {
      Chunk v = get(from + i);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) v.v[e] = apply<S>(c, v.v[e]);
      put(y_ + i, affine(v, scale, bias, i));
    }
    if constexpr (S == Statistics::CRMS_FULL) {
      if (first_ == 0) put(y_ + size_, affine({{c.missing}}, scale, bias, size_));
    }
  }

 private:
  static constexpr int kWidth = Wide ? kPerVector<T> : 1;
  // A partial sum is closed after this many additions, which bounds its rounding error.
  static constexpr int64_t kSegment = 64;

  struct Chunk {
    float v[kWidth];
  };

  ONNXFOLD_THREAD static Chunk get(const T* from) {
    if constexpr (Wide)
      return bits_as<Chunk>(unpack<T>(load_vector(from)));
    else
      return {{widen(*from)}};
  }
  ONNXFOLD_THREAD static Chunk get_constant(const T* from) {
    if constexpr (Wide)
      return bits_as<Chunk>(unpack<T>(load_constant_vector(from)));
    else
      return {{widen(load_constant(from))}};
  }
  ONNXFOLD_THREAD static void put(T* to, const Chunk& v) {
    if constexpr (Wide)
      store_vector(to, pack<T>(bits_as<Values<T>>(v)));
    else
      *to = narrow<T>(v.v[0]);
  }

  ONNXFOLD_THREAD static Chunk affine(Chunk v, const T* scale, const T* bias, int64_t i) {
    if (scale != nullptr) {
      const Chunk s = get_constant(scale + i);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) v.v[e] *= s.v[e];
    }
    if (bias != nullptr) {
      const Chunk b = get_constant(bias + i);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) v.v[e] += b.v[e];
    }
    return v;
  }

  ONNXFOLD_THREAD void add(int64_t i, Chunk& v) const {
    if (linear_bias_ != nullptr) {
      const Chunk b = get_constant(linear_bias_ + i);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) v.v[e] += b.v[e];
    }
    const Chunk r = get(residual_ + i);
    ONNXFOLD_UNROLL
    for (int e = 0; e < kWidth; ++e) v.v[e] = widen(narrow<T>(v.v[e] + r.v[e]));
    put(stash_ + i, v);
  }

  // Of what value(i, chunk) puts into the chunk at element i.
  template <class Value>
  ONNXFOLD_THREAD Moments moments(Value value) const {
    Moments total = {0.0f, 0.0f};
    for (int64_t begin = first_; begin < size_; begin += kSegment * step_) {
      Moments part = {0.0f, 0.0f};
      const int64_t stop = begin + kSegment * step_;
      const int64_t end = stop < size_ ? stop : size_;
      for (int64_t i = begin; i < end; i += step_) {
        Chunk v;
        value(i, v);
        accumulate(part, v.v);
      }
      total.sum += part.sum;
      total.squares += part.squares;
    }
    return total;
  }

  const T* x_;
  const T* residual_;
  const T* linear_bias_;
  T* y_;
  T* stash_;
  int64_t size_, first_, step_;
};

}  // namespace cuda
}  // namespace onnxfold
