// One thread's part of a row of any length and alignment: read again for every step, from the
// caches after the first. `Wide` moves vectors, for rows that are made of whole and aligned ones;
// the other form moves elements, neighbouring threads neighbouring ones. `Split`: the thread's group
// has a part of the row, and sums are computed again
// where they are needed, since the groups that measure write nothing.
#pragma once

#include "algorithm.h"

namespace onnxfold {
namespace cuda {

// `Extended`: see RowThread.
template <class T, Statistics S, bool Residual, bool Wide, bool Extended, bool Split = false>
class LoopThread {
 public:
  using Element = T;
  static constexpr Statistics kStatistics = S;
  static constexpr bool kExtended = Extended;
  static_assert(!Wide || !Extended, "codes are written one by one");
  static_assert(!Split || !Extended, "codes are written by one block");

  ONNXFOLD_THREAD void load(const Arguments& a, int64_t row, int rank, int threads) {
    constexpr int64_t kExtra = S == Statistics::CRMS_FULL ? 1 : 0;
    size_ = end_ = a.size;
    first_ = static_cast<int64_t>(rank) * kWidth;
    step_ = static_cast<int64_t>(threads) * kWidth;
    x_ = static_cast<const T*>(a.x) + row * size_;
    residual_ = Residual ? static_cast<const T*>(a.residual) + row * size_ : nullptr;
    linear_bias_ = static_cast<const T*>(a.linear_bias);
    start_ = row * (size_ + kExtra);
    y_ = static_cast<T*>(a.y) + start_;  // unless y has codes
    factor_ = Extended && Residual && a.row_scale != nullptr ? number_of(a.row_scale, a, row) : 1.0f;
    // The rounded sum waits in y where it is no output: a thread reads what it wrote itself.
    sum_ = a.sum != nullptr ? static_cast<T*>(a.sum) + row * size_ : nullptr;
    stash_ = a.sum != nullptr ? sum_ : y_;
  }

  ONNXFOLD_THREAD void load_part(const Arguments& a, int64_t row, int rank, int threads,
                                 const Parts& parts, int part) {
    load(a, row, rank, threads);
    const int64_t begin = part * parts.length;
    first_ += begin;
    end_ = begin + parts.length < size_ ? begin + parts.length : size_;
  }

  template <bool Sum, bool Squares>
  ONNXFOLD_THREAD Moments first() const {
    return moments<Sum, Squares>([&](int64_t i, auto& v) {
      if constexpr (Residual)
        add(i, v);
      else
        get(x_, i, v);
      if constexpr (Residual && !Split) put(stash_, i, v);
    });
  }

  template <bool Squares>
  ONNXFOLD_THREAD Moments second(float mean) const {
    return moments<true, Squares>([&](int64_t i, auto& v) {
      again(i, v);
      for_each(v, [&](float& element) { element -= mean; });
    });
  }

  ONNXFOLD_THREAD void write(const Arguments& a, const Coefficients& c) const {
    const T* scale = static_cast<const T*>(a.scale);
    const T* bias = static_cast<const T*>(a.bias);
    batches(first_, end_, [&](int64_t i, auto& v) {
      again(i, v);
      if constexpr (Residual && Split)
        if (sum_ != nullptr) put(sum_, i, v);
      finish(v, c, scale, bias, i, a.activation);
      put(y_, i, v);
    });
    if constexpr (S == Statistics::CRMS_FULL) {
      if (first_ != 0) return;
      Batch<1> last = {{{{c.missing}}}};
      affine(last, scale, bias, size_);
      put(y_, size_, last);
    }
  }

  Partial partial;  // of the part whose number is the thread's, and its share of the row
  float weight;

  ONNXFOLD_THREAD float largest(const Arguments& a, const Coefficients& c) const {
    float most = 0.0f;
    finished(a, c, [&](int64_t, float y) { most = fmaxf(most, fabsf(y)); });
    return most;
  }

  ONNXFOLD_THREAD void write_codes(const Arguments& a, const Coefficients& c,
                                   const Steps& steps) const {
    uint8_t* to = static_cast<uint8_t*>(a.y) + start_;
    finished(a, c, [&](int64_t i, float y) { to[i] = static_cast<uint8_t>(code_of(steps, y)); });
  }

 private:
  static constexpr int kWidth = Wide ? kPerVector<T> : 1;
  // A partial sum is closed after this many additions, which bounds its rounding error.
  static constexpr int64_t kSegment = 64;

  // So many loads of a thread are under way at a time: a block has half of a multiprocessor's threads,
  // and 4 loads of 16 bytes of each are 64 KB.
  static constexpr int kBatch = 4;

  struct Chunk {
    float v[kWidth];
  };
  template <int Count>
  struct Batch {
    Chunk chunk[Count];
  };

  // Batches of what is the thread's own in [begin, end), and what is left one by one.
  template <class Step>
  ONNXFOLD_THREAD void batches(int64_t begin, int64_t end, Step step) const {
    int64_t i = begin;
    for (; i + (kBatch - 1) * step_ < end; i += kBatch * step_) {
      Batch<kBatch> v;
      step(i, v);
    }
    for (; i < end; i += step_) {
      Batch<1> v;
      step(i, v);
    }
  }

  template <int Count, class Change>
  ONNXFOLD_THREAD static void for_each(Batch<Count>& v, Change change) {
    ONNXFOLD_UNROLL
    for (int k = 0; k < Count; ++k) {
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) change(v.chunk[k].v[e]);
    }
  }

  template <int Count>
  ONNXFOLD_THREAD void finish(Batch<Count>& v, const Coefficients& c, const T* scale, const T* bias,
                              int64_t i, Activation activation) const {
    for_each(v, [&](float& element) { element = apply<S>(c, element); });
    affine(v, scale, bias, i);
    if constexpr (S == Statistics::ROW)
      for_each(v, [&](float& element) { element = activated(element, activation); });
  }

  // Calls use(i, y) for each element of y that is the thread's own, rounded to T.
  template <class Use>
  ONNXFOLD_THREAD void finished(const Arguments& a, const Coefficients& c, Use use) const {
    batches(first_, end_, [&](int64_t i, auto& v) {
      again(i, v);
      finish(v, c, static_cast<const T*>(a.scale), static_cast<const T*>(a.bias), i, a.activation);
      int64_t at = i;
      for (const Chunk& chunk : v.chunk) {
        use(at, widen(narrow<T>(chunk.v[0])));
        at += step_;
      }
    });
  }

  ONNXFOLD_THREAD static Chunk get_one(const T* from) {
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

  template <int Count>
  ONNXFOLD_THREAD void get(const T* row, int64_t i, Batch<Count>& v) const {
    ONNXFOLD_UNROLL
    for (int k = 0; k < Count; ++k) v.chunk[k] = get_one(row + i + k * step_);
  }

  template <int Count>
  ONNXFOLD_THREAD void put(T* row, int64_t i, const Batch<Count>& v) const {
    ONNXFOLD_UNROLL
    for (int k = 0; k < Count; ++k) {
      T* to = row + i + k * step_;
      if constexpr (Wide)
        store_vector(to, pack<T>(bits_as<Values<T>>(v.chunk[k])));
      else
        *to = narrow<T>(v.chunk[k].v[0]);
    }
  }

  template <int Count>
  ONNXFOLD_THREAD void affine(Batch<Count>& v, const T* scale, const T* bias, int64_t i) const {
    if (scale != nullptr) {
      ONNXFOLD_UNROLL
      for (int k = 0; k < Count; ++k) {
        const Chunk s = get_constant(scale + i + k * step_);
        ONNXFOLD_UNROLL
        for (int e = 0; e < kWidth; ++e) v.chunk[k].v[e] *= s.v[e];
      }
    }
    if (bias != nullptr) add_constants(v, bias, i);
  }

  template <int Count>
  ONNXFOLD_THREAD void add_constants(Batch<Count>& v, const T* row, int64_t i) const {
    ONNXFOLD_UNROLL
    for (int k = 0; k < Count; ++k) {
      const Chunk c = get_constant(row + i + k * step_);
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e) v.chunk[k].v[e] += c.v[e];
    }
  }

  // What is normalised, when it was read before.
  template <int Count>
  ONNXFOLD_THREAD void again(int64_t i, Batch<Count>& v) const {
    if constexpr (Residual && Split)
      add(i, v);
    else
      get(Residual ? stash_ : x_, i, v);
  }

  // All of a batch is read before any of it is stored, which may be over it.
  template <int Count>
  ONNXFOLD_THREAD void add(int64_t i, Batch<Count>& v) const {
    Batch<Count> r;
    get(x_, i, v);
    get(residual_, i, r);
    if constexpr (Extended) for_each(v, [&](float& element) { element *= factor_; });
    if (linear_bias_ != nullptr) add_constants(v, linear_bias_, i);
    ONNXFOLD_UNROLL
    for (int k = 0; k < Count; ++k) {
      ONNXFOLD_UNROLL
      for (int e = 0; e < kWidth; ++e)
        v.chunk[k].v[e] = widen(narrow<T>(v.chunk[k].v[e] + r.chunk[k].v[e]));
    }
  }

  // Of what value(i, batch) puts into the batch that begins at element i.
  template <bool Sum, bool Squares, class Value>
  ONNXFOLD_THREAD Moments moments(Value value) const {
    Moments total = {0.0f, 0.0f};
    for (int64_t begin = first_; begin < end_; begin += kSegment * step_) {
      Moments part = {0.0f, 0.0f};
      const int64_t stop = begin + kSegment * step_;
      batches(begin, stop < end_ ? stop : end_, [&](int64_t i, auto& v) {
        value(i, v);
        for (const Chunk& chunk : v.chunk) accumulate<Sum, Squares>(part, chunk.v);
      });
      total.sum += part.sum;
      total.squares += part.squares;
    }
    return total;
  }

  const T* x_;
  const T* residual_;
  const T* linear_bias_;
  T* y_;
  T* sum_;
  T* stash_;
  float factor_;  // of x, before anything is added
  int64_t start_, size_, first_, end_, step_;
};

}  // namespace cuda
}  // namespace onnxfold
