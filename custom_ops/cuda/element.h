// Element types, and the vectors of 16 bytes in which they are moved. Compiled by nvcc for threads
// of the device and by any C++ compiler for the emulation of those threads (tests/custom_ops).
#pragma once

#include <math.h>
#include <string.h>

#include "onnxfold/kernels.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#define ONNXFOLD_THREAD __device__ __forceinline__
#define ONNXFOLD_UNROLL _Pragma("unroll")
#else
#define ONNXFOLD_THREAD inline
#define ONNXFOLD_UNROLL
#endif

namespace onnxfold {
namespace cuda {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// What one load or store moves: the widest access of the device.
struct alignas(16) Packed {
  uint32_t word[4];
};

template <class T>
constexpr int kPerVector = static_cast<int>(sizeof(Packed) / sizeof(T));

template <class To, class From>
ONNXFOLD_THREAD To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "a reinterpretation keeps its size");
  To to;
  memcpy(&to, &from, sizeof(to));
  return to;
}

ONNXFOLD_THREAD float widen(float v) { return v; }
ONNXFOLD_THREAD float widen(BFloat16 v) {
  return bits_as<float>(static_cast<uint32_t>(v.bits) << 16);
}

template <class T>
ONNXFOLD_THREAD T narrow(float v);
template <>
ONNXFOLD_THREAD float narrow<float>(float v) {
  return v;
}

#if defined(__CUDACC__)
ONNXFOLD_THREAD float widen(Half v) { return __half2float(bits_as<__half>(v)); }
template <>
ONNXFOLD_THREAD Half narrow<Half>(float v) {
  return bits_as<Half>(__float2half_rn(v));
}
template <>
ONNXFOLD_THREAD BFloat16 narrow<BFloat16>(float v) {
  return bits_as<BFloat16>(__float2bfloat16_rn(v));
}
ONNXFOLD_THREAD float reciprocal_root(float v) { return rsqrtf(v); }
#else
// The exponent is moved by a multiplication, which is exact and makes subnormals normal.
inline float widen(Half v) {
  const uint32_t magnitude = static_cast<uint32_t>(v.bits & 0x7fff) << 13;
  const uint32_t moved = bits_as<uint32_t>(bits_as<float>(magnitude) * 0x1p112f);
  const uint32_t infinite = magnitude >= (0x7c00u << 13) ? 0x7f800000u : 0u;
  return bits_as<float>(moved | infinite | static_cast<uint32_t>(v.bits & 0x8000) << 16);
}
// Normal results round by an addition to the bits; subnormal ones by adding 0.5, whose last place
// is the smallest float16.
template <>
inline Half narrow<Half>(float v) {
  const uint32_t bits = bits_as<uint32_t>(v), magnitude = bits & 0x7fffffff;
  uint32_t half = (magnitude + 0xc8000fffu + ((magnitude >> 13) & 1)) >> 13;
  if (magnitude < 0x38800000)
    half = bits_as<uint32_t>(bits_as<float>(magnitude) + 0.5f) - 0x3f000000;
  if (magnitude >= 0x47800000) half = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
  return {static_cast<uint16_t>(half | (bits >> 16 & 0x8000))};
}
template <>
inline BFloat16 narrow<BFloat16>(float v) {
  const uint32_t bits = bits_as<uint32_t>(v);
  const uint32_t rounded = v != v ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
  return {static_cast<uint16_t>(rounded >> 16)};
}
inline float reciprocal_root(float v) { return 1.0f / sqrtf(v); }
#endif

// The elements of a vector as float32, and back, rounded to nearest even.
template <class T>
struct Values {
  float v[kPerVector<T>];
};

template <class T>
struct Elements {
  T v[kPerVector<T>];
};

template <class T>
ONNXFOLD_THREAD Values<T> unpack(Packed packed) {
  const Elements<T> elements = bits_as<Elements<T>>(packed);
  Values<T> values;
  ONNXFOLD_UNROLL
  for (int e = 0; e < kPerVector<T>; ++e) values.v[e] = widen(elements.v[e]);
  return values;
}

template <class T>
ONNXFOLD_THREAD Packed pack(const Values<T>& values) {
  Elements<T> elements;
  ONNXFOLD_UNROLL
  for (int e = 0; e < kPerVector<T>; ++e) elements.v[e] = narrow<T>(values.v[e]);
  return bits_as<Packed>(elements);
}

#if defined(__CUDACC__)
// Two at a time, by one instruction where the device has it.
template <>
ONNXFOLD_THREAD Packed pack<Half>(const Values<Half>& values) {
  Packed packed;
  ONNXFOLD_UNROLL
  for (int w = 0; w < 4; ++w)
    packed.word[w] =
        bits_as<uint32_t>(__floats2half2_rn(values.v[2 * w], values.v[2 * w + 1]));
  return packed;
}
template <>
ONNXFOLD_THREAD Packed pack<BFloat16>(const Values<BFloat16>& values) {
  Packed packed;
  ONNXFOLD_UNROLL
  for (int w = 0; w < 4; ++w)
    packed.word[w] =
        bits_as<uint32_t>(__floats2bfloat162_rn(values.v[2 * w], values.v[2 * w + 1]));
  return packed;
}
#endif

// Where a row begins, as one sum, which 32-bit offsets are added to by one instruction each. Known to be
// a sum, it would be taken apart, and the offsets added in 64 bits.
template <class Pointer>
ONNXFOLD_THREAD Pointer row_at(Pointer tensor, unsigned row, unsigned row_bytes) {
#if defined(__CUDACC__)
  asm("mad.wide.u32 %0, %1, %2, %0;" : "+l"(tensor) : "r"(row), "r"(row_bytes));
  __builtin_assume(__isGlobal(tensor));
  return tensor;
#else
  return reinterpret_cast<Pointer>(reinterpret_cast<uintptr_t>(tensor) + uint64_t{row} * row_bytes);
#endif
}

// x, residual, y and sum may be one memory: plain accesses, in the order of the program.
template <class T>
ONNXFOLD_THREAD Packed load_vector(const T* from) {
#if defined(__CUDACC__)
  return bits_as<Packed>(*reinterpret_cast<const uint4*>(from));
#else
  Packed packed;
  memcpy(&packed, from, sizeof(packed));
  return packed;
#endif
}

template <class T>
ONNXFOLD_THREAD void store_vector(T* to, Packed packed) {
#if defined(__CUDACC__)
  // A plain assignment is now and then taken apart into four stores of 4 bytes.
  __stwb(reinterpret_cast<uint4*>(to), bits_as<uint4>(packed));
#else
  memcpy(to, &packed, sizeof(packed));
#endif
}

// scale, bias and linear_bias are never written: they may come through the read-only path.
template <class T>
ONNXFOLD_THREAD Packed load_constant_vector(const T* from) {
#if defined(__CUDACC__)
  return bits_as<Packed>(__ldg(reinterpret_cast<const uint4*>(from)));
#else
  return load_vector(from);
#endif
}

template <class T>
ONNXFOLD_THREAD T load_constant(const T* from) {
#if defined(__CUDACC__)
  return {__ldg(&from->bits)};
#else
  return *from;
#endif
}
template <>
ONNXFOLD_THREAD float load_constant<float>(const float* from) {
#if defined(__CUDACC__)
  return __ldg(from);
#else
  return *from;
#endif
}

// The code of a number in units of a step, in the low byte; codes.inc of the CPU's kernels has the same
// rules. Kernels are compiled for 8.0, which has no instruction for float8.
ONNXFOLD_THREAD uint32_t float8_code(float v) {
  const uint32_t bits = bits_as<uint32_t>(v);
  const float magnitude = fminf(bits_as<float>(bits & 0x7fffffff), 448.0f);  // of NaN, too
  const uint32_t m = bits_as<uint32_t>(magnitude);
  const uint32_t normal = ((m + 0x7ffff + ((m >> 20) & 1)) >> 20) - (120u << 3);
  const uint32_t subnormal = bits_as<uint32_t>(magnitude + 16384.0f) - 0x46800000u;
  const uint32_t code = v != v ? 0x7f : m < (121u << 23) ? subnormal : normal;
  return code | (bits >> 24 & 0x80);
}
ONNXFOLD_THREAD uint32_t integer_code(float v, int low, int zero) {
  const float least = static_cast<float>(low - zero);
  const float inside = fminf(fmaxf(v, least), least + 255.0f);
  return static_cast<uint32_t>(static_cast<int>(rintf(inside)) + zero) & 0xff;
}

// How a number becomes a code.
struct Steps {
  Code code;
  float size;
  float inverse;  // of size; the largest number where size is too small, but 0
  int zero;       // the code of 0
};

ONNXFOLD_THREAD Steps steps_of(const Arguments& a, float size) {
  int zero = 0;
  if (a.code == Code::INT8) zero = *static_cast<const int8_t*>(a.zero_point);
  if (a.code == Code::UINT8) zero = *static_cast<const uint8_t*>(a.zero_point);
  const float exact = 1.0f / size, largest = 0x1.fffffep127f;
  return {a.code, size, exact < largest || size == 0.0f ? exact : largest, zero};
}

// v / size, rounded as a division is: a product, and one more with what it lost.
ONNXFOLD_THREAD uint32_t code_of(const Steps& steps, float v) {
  const float q = v * steps.inverse;
  const float closer = fmaf(fmaf(-q, steps.size, v), steps.inverse, q);
  const float scaled = fabsf(q) < 0x1p60f ? closer : q;
  if (steps.code == Code::FLOAT8) return float8_code(scaled);
  return integer_code(scaled, steps.code == Code::INT8 ? -128 : 0, steps.zero);
}

ONNXFOLD_THREAD float activated(float v, Activation activation) {
  switch (activation) {
    case Activation::NONE: return v;
    case Activation::RELU: return v < 0.0f ? 0.0f : v;
    case Activation::GELU: return 0.5f * v * erfcf(v * -0.70710678f);
    case Activation::GELU_TANH:
      return v / (1.0f + expf(-1.5957691216f * (v + 0.044715f * (v * v * v))));
    case Activation::SILU: return v / (1.0f + expf(-v));
  }
  return v;
}

}  // namespace cuda
}  // namespace onnxfold
