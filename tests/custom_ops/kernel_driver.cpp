// Tests the compute, launch and check layers without ONNX Runtime, and the CUDA kernels in their
// emulation: under the sanitizers, under an emulator of another architecture, or as they are. Every
// buffer has the exact size of its tensor, so that the address sanitizer sees a step outside. Prints
// what was wrong; exits 1 if anything was.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

#include "emulation.h"
#include "onnxfold/check.h"
#include "onnxfold/launch.h"
#include "onnxfold/ops.h"

using namespace onnxfold;

namespace {

int failures = 0;
long compared = 0;

void fail(const std::string& what) {
  if (++failures <= 20) printf("%s\n", what.c_str());
}

// A binary format: digits of the significand, smallest normal exponent, largest exponent.
struct Format {
  int digits, low, high;
};
constexpr Format kFormats[] = {{24, -126, 127}, {11, -14, 15}, {8, -126, 127}};

Format format(ElementType type) { return kFormats[static_cast<int>(type)]; }
size_t bytes(ElementType type) { return type == ElementType::FLOAT ? 4 : 2; }

double rounded(ElementType type, double v) {
  if (v == 0 || !isfinite(v)) return v;
  const Format f = format(type);
  int exponent = ilogb(v) < f.low ? f.low : ilogb(v);
  const double last_place = ldexp(1.0, exponent - f.digits + 1);
  const double result = nearbyint(v / last_place) * last_place;
  return fabs(result) >= ldexp(1.0, f.high + 1) ? copysign(INFINITY, v) : result;
}

// One tensor: its values, and the same in its own format in a heap block of exactly its size.
class Tensor {
 public:
  Tensor(ElementType type, size_t count) : type_(type), count_(count) {
    data_ = malloc(count * bytes(type) + (count == 0));
  }
  Tensor(const Tensor& other) : Tensor(other.type_, other.count_) {
    memcpy(data_, other.data_, count_ * bytes(type_));
  }
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { free(data_); }

  void* data() { return data_; }
  size_t count() const { return count_; }

  double operator[](size_t i) const {
    if (type_ == ElementType::FLOAT) return static_cast<const float*>(data_)[i];
    const uint16_t bits = static_cast<const uint16_t*>(data_)[i];
    const Format f = format(type_);
    const int stored = f.digits - 1;
    const int mantissa = bits & ((1 << stored) - 1);
    const int exponent = (bits & 0x7fff) >> stored;
    double v;
    if (exponent == f.high - f.low + 2)
      v = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
      v = ldexp(mantissa, f.low - stored);
    else
      v = ldexp(mantissa + (1 << stored), exponent - 1 + f.low - stored);
    return (bits & 0x8000) != 0 ? -v : v;
  }

  void set(size_t i, double v) {
    if (type_ == ElementType::FLOAT) {
      static_cast<float*>(data_)[i] = static_cast<float>(v);
      return;
    }
    // Values are chosen representable and finite; the search is short for it.
    const Format f = format(type_);
    const double magnitude = fabs(rounded(type_, v));
    const int stored = f.digits - 1;
    uint16_t bits = 0;
    if (magnitude != 0) {
      const int exponent = ilogb(magnitude) < f.low ? f.low : ilogb(magnitude);
      const long digits = lround(ldexp(magnitude, stored - exponent));
      const long biased = digits >= (1 << stored) ? exponent - f.low + 1 : 0;
      bits = static_cast<uint16_t>((biased << stored) | (digits & ((1 << stored) - 1)));
    }
    static_cast<uint16_t*>(data_)[i] = bits | (signbit(v) ? 0x8000 : 0);
  }

 private:
  ElementType type_;
  size_t count_;
  void* data_;
};

double random_normal() {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += rand() / (RAND_MAX + 1.0);
  return sum;
}

Tensor random_tensor(ElementType type, size_t count, double offset) {
  Tensor t(type, count);
  for (size_t i = 0; i < count; ++i) t.set(i, offset + random_normal());
  return t;
}

struct Case {
  const Op& op;
  ElementType type;
  size_t rows, size;
  double epsilon;

  size_t y_size() const { return size + (op.statistics == Statistics::CRMS_FULL ? 1 : 0); }
  std::string name() const {
    return std::string(op.name) + " type " + std::to_string(static_cast<int>(type)) + " " +
           std::to_string(rows) + "x" + std::to_string(size);
  }
};

// The op's formula in float64 for one row, from the rounded sum s; y before scale and bias.
std::vector<double> normalised(const Case& c, const std::vector<double>& s) {
  std::vector<double> v = s;
  double sum = 0, squares = 0, size = static_cast<double>(c.size);
  for (double x : v) sum += x;
  if (c.op.statistics == Statistics::LAYER || c.op.statistics == Statistics::CENTER)
    for (double& x : v) x -= sum / size;
  if (c.op.statistics == Statistics::CENTER) return v;
  if (c.op.statistics == Statistics::CRMS || c.op.statistics == Statistics::CRMS_FULL) {
    squares = sum * sum;
    size += 1;
  }
  if (c.op.statistics == Statistics::CRMS_FULL) v.push_back(-sum);
  const size_t stored = c.size;
  for (size_t i = 0; i < stored; ++i) squares += v[i] * v[i];
  for (double& x : v) x /= sqrt(squares / size + c.epsilon);
  return v;
}

Failure* serial_for(void* context, Executor::Task task, size_t count, void* data) {
  for (size_t i = count; i-- > 0;) task(data, i);
  *static_cast<size_t*>(context) += count;
  return nullptr;
}

void compare(const Case& c, Tensor& x, Tensor& residual, Tensor& linear_bias, Tensor& scale,
             Tensor& bias, Tensor& y, Tensor& sum) {
  const double unit = c.type == ElementType::FLOAT ? 0 : ldexp(1.0, -format(c.type).digits);
  const bool layer = c.op.statistics == Statistics::LAYER;
  double largest = c.op.affine == Affine::NONE ? 1 : 0;
  for (size_t i = 0; i < c.y_size() && c.op.affine != Affine::NONE; ++i)
    largest = fmax(largest, fabs(scale[i]));
  for (size_t row = 0; row < c.rows; ++row) {
    std::vector<double> s;
    double magnitude = 0, peak = 0;
    for (size_t i = 0; i < c.size; ++i) {
      const size_t at = row * c.size + i;
      float total = static_cast<float>(x[at]);
      if (c.op.linear_bias) total += static_cast<float>(linear_bias[i]);
      if (c.op.residual) total += static_cast<float>(residual[at]);
      s.push_back(c.op.residual ? rounded(c.type, total) : static_cast<double>(total));
      peak = fmax(peak, fabs(s[i]));
      if (c.op.with_sum && sum[at] != s[i]) fail(c.name() + ": a sum differs");
    }
    const std::vector<double> norm = normalised(c, s);
    for (double v : norm) magnitude += fabs(v);
    for (size_t i = 0; i < c.y_size(); ++i) {
      double factor = 1, expected = norm[i];
      if (c.op.affine != Affine::NONE) expected *= factor = scale[i];
      if (c.op.affine == Affine::AFFINE) expected += bias[i];
      // As in tests/custom_ops/harness.py.
      double bound = unit * fabs(expected) + 2e-6 * (fabs(norm[i] * factor) + fabs(expected)) +
                     (layer ? 5e-6 : 1e-6) * largest;
      if (c.op.statistics == Statistics::CENTER) bound = unit * fabs(expected) + 2e-6 * peak;
      if (i == c.size) bound += 1e-7 * magnitude * largest;
      const double got = y[row * c.y_size() + i];
      ++compared;
      if (!(fabs(got - expected) <= bound))
        fail(c.name() + ": " + std::to_string(got) + " where " + std::to_string(expected));
    }
  }
}

// As CUDA does it on a device with so many multiprocessors: a row at a time or several, by more
// threads or by fewer.
void run_emulated(const Case& c, Arguments a, int multiprocessors, Tensor& x, Tensor& residual,
                  Tensor& linear_bias, Tensor& scale, Tensor& bias) {
  Tensor y(c.type, c.rows * c.y_size());
  Tensor sum(c.type, c.op.with_sum ? c.rows * c.size : 0);
  a.y = y.data();
  if (c.op.with_sum) a.sum = sum.data();
  cuda::emulate(c.op, c.type, a, multiprocessors);
  compare(c, x, residual, linear_bias, scale, bias, y, sum);
}

void run_case(const Case& c) {
  const ElementType t = c.type;
  // Both ways of LayerNorm: a mean below and above the deviation.
  const bool far = c.op.statistics == Statistics::LAYER && c.size % 2 == 1;
  Tensor x = random_tensor(t, c.rows * c.size, far ? 3 : 0.5);
  Tensor residual = random_tensor(t, c.op.residual ? c.rows * c.size : 0, 0);
  Tensor linear_bias = random_tensor(t, c.op.linear_bias ? c.size : 0, 0);
  Tensor scale = random_tensor(t, c.op.affine != Affine::NONE ? c.y_size() : 0, 1);
  Tensor bias = random_tensor(t, c.op.affine == Affine::AFFINE ? c.y_size() : 0, 0);
  Tensor y(t, c.rows * c.y_size());
  Tensor sum(t, c.op.with_sum ? c.rows * c.size : 0);
  Arguments a = {x.data(),
                 c.op.residual ? residual.data() : nullptr,
                 c.op.linear_bias ? linear_bias.data() : nullptr,
                 c.op.affine != Affine::NONE ? scale.data() : nullptr,
                 c.op.affine == Affine::AFFINE ? bias.data() : nullptr,
                 y.data(),
                 c.op.with_sum ? sum.data() : nullptr,
                 static_cast<int64_t>(c.rows),
                 static_cast<int64_t>(c.size),
                 static_cast<float>(c.epsilon),
                 Activation::NONE,
                 Code::NONE,
                 0,
                 0,
                 nullptr,
                 nullptr,
                 nullptr,
                 nullptr,
                 nullptr,
                 nullptr};
  const RowsFunction rows = cpu_rows(c.op, t);
  size_t tasks = 0;
  if (cpu_backend.launch(c.op, t, a, {serial_for, nullptr, nullptr, nullptr, &tasks}) != nullptr)
    fail(c.name() + ": launch");
  compare(c, x, residual, linear_bias, scale, bias, y, sum);

  for (int multiprocessors : {1, 1000})
    run_emulated(c, a, multiprocessors, x, residual, linear_bias, scale, bias);

  // In place, in each way that may happen: not a bit changes.
  if (c.op.statistics == Statistics::CRMS_FULL) return;
  for (int way = 0; way < (c.op.residual ? 2 : 1); ++way) {
    Tensor x2 = x, residual2 = residual;
    Arguments b = a;
    b.x = x2.data();
    if (c.op.residual) b.residual = residual2.data();
    Tensor& y2 = way == 0 ? x2 : residual2;
    Tensor& sum2 = way == 0 ? residual2 : x2;
    b.y = y2.data();
    if (c.op.with_sum) b.sum = sum2.data();
    rows(b, 0, b.rows);
    if (memcmp(y2.data(), y.data(), y.count() * bytes(t)) != 0) fail(c.name() + ": y in place");
    if (c.op.with_sum && memcmp(sum2.data(), sum.data(), sum.count() * bytes(t)) != 0)
      fail(c.name() + ": sum in place");
  }
}

// What an extended op writes: y or its codes, the scales of rows, the sum.
struct Written {
  Written(const Op& op, ElementType type, size_t rows, size_t size)
      : codes(op.output == Output::NORM || op.output == Output::SCALE ? 0 : rows * size),
        row_scales(op.output == Output::SCALE ? rows : 0),
        y(type, op.output == Output::NORM ? rows * size : 0),
        y_scales(type, op.output == Output::QUANTIZED_ROWS ? rows : 0),
        sum(type, op.with_sum ? rows * size : 0) {}

  void into(const Op& op, Arguments& a) {
    a.y = op.output == Output::NORM ? y.data() : op.output == Output::SCALE ? nullptr : codes.data();
    a.row_scales = op.output == Output::SCALE ? row_scales.data() : nullptr;
    a.y_scales = op.output == Output::QUANTIZED_ROWS ? y_scales.data() : nullptr;
    a.sum = op.with_sum ? sum.data() : nullptr;
  }

  std::vector<uint8_t> codes;
  std::vector<float> row_scales;
  Tensor y, y_scales, sum;
};

// Both kernels round to the type up to three times; their float32 parts are good to 1e-5.
void compare_tensors(const std::string& name, ElementType type, const Tensor& a, const Tensor& b) {
  const double unit = ldexp(1.0, 1 - format(type).digits);
  for (size_t i = 0; i < a.count(); ++i) {
    ++compared;
    if (!(fabs(a[i] - b[i]) <= 3 * unit * fabs(a[i]) + 2e-5)) fail(name + ": the kernels differ");
  }
}

// The two kernels of an op with codes or numbers of rows against each other; tests of ONNX Runtime
// compare both with float64.
void run_extended(const Op& op, ElementType type, size_t rows, size_t size, Code code) {
  const std::string name = Case{op, type, rows, size, 1e-5}.name();
  Tensor x = random_tensor(type, rows * size, 0.5), residual = random_tensor(type, rows * size, 0);
  Tensor linear_bias = random_tensor(type, size, 0), scale = random_tensor(type, size, 1);
  Tensor bias = random_tensor(type, size, 0), step(type, 1);
  step.set(0, 0.03125);
  std::vector<float> of_rows(rows, 0.5f);
  const uint8_t zero = code == Code::FLOAT8 ? 0 : 3;
  Arguments a = {};
  a.x = x.data();
  a.residual = op.residual ? residual.data() : nullptr;
  a.linear_bias = op.linear_bias ? linear_bias.data() : nullptr;
  a.scale = op.affine == Affine::SCALE || op.affine == Affine::AFFINE ? scale.data() : nullptr;
  a.bias = op.affine == Affine::BIAS || op.affine == Affine::AFFINE ? bias.data() : nullptr;
  a.rows = static_cast<int64_t>(rows);
  a.size = static_cast<int64_t>(size);
  a.epsilon = 1e-5f;
  a.activation = op.activation;
  a.code = code;
  a.levels = code == Code::FLOAT8 ? 448.0f : 127.0f;
  a.row_scale = op.row_scale ? of_rows.data() : nullptr;
  a.row_epsilon = op.row_epsilon ? of_rows.data() : nullptr;
  a.y_scale = op.output == Output::QUANTIZED ? step.data() : nullptr;
  a.zero_point = code != Code::NONE ? &zero : nullptr;
  Written first(op, type, rows, size);
  first.into(op, a);
  cpu_rows(op, type)(a, 0, a.rows);
  for (int multiprocessors : {1, 1000}) {
    Written second(op, type, rows, size);
    second.into(op, a);
    cuda::emulate(op, type, a, multiprocessors);
    compare_tensors(name, type, first.y, second.y);
    compare_tensors(name, type, first.y_scales, second.y_scales);
    compare_tensors(name, type, first.sum, second.sum);
    for (size_t i = 0; i < first.row_scales.size(); ++i) {
      const float one = first.row_scales[i], other = second.row_scales[i];
      const bool same = size > 0 ? fabsf(one / other - 1) <= 1e-5f : isnan(one) && isnan(other);
      if (!same) fail(name + ": scale");  // of no elements there is no mean
    }
    // A number in the middle of two codes, or beside 0, may go to either.
    for (size_t i = 0; i < first.codes.size(); ++i) {
      const int step_apart = abs((first.codes[i] & 0x7f) - (second.codes[i] & 0x7f));
      if (step_apart > 1 && step_apart < 0x7f) fail(name + ": codes differ");
    }
  }
}

void run_extended(const Op& op, ElementType type, size_t rows, size_t size) {
  const bool quantised = op.output == Output::QUANTIZED || op.output == Output::QUANTIZED_ROWS;
  if (!quantised) return run_extended(op, type, rows, size, Code::NONE);
  for (Code code : {Code::INT8, Code::UINT8, Code::FLOAT8})
    run_extended(op, type, rows, size, code);
}

void test_checks() {
  Op rms = {}, full = {}, codes = {};
  full.statistics = Statistics::CRMS_FULL;
  codes.output = Output::QUANTIZED_ROWS;
  Arguments a = {}, fine = {}, no_number = {}, no_levels = {};
  fine.epsilon = 1e-5f;
  fine.levels = 127;
  no_number.epsilon = NAN;
  const Shape x = {{2, 3, 4}, 3}, other = {{2, 4, 3}, 3};
  if (check_input(-2, x, a) != nullptr || a.rows != 2 || a.size != 12) fail("check_input");
  if (check_input(-4, x, a) == nullptr) fail("check_input takes too many axes");
  if (check_residual(x, x) != nullptr || check_residual(x, other) == nullptr)
    fail("check_residual");
  if (check_attributes(rms, -1, fine) != nullptr || check_attributes(rms, 0, fine) == nullptr ||
      check_attributes(rms, -17, fine) == nullptr ||
      check_attributes(rms, -1, no_number) == nullptr ||
      check_attributes(full, -2, fine) == nullptr || check_attributes(codes, -1, fine) != nullptr ||
      check_attributes(codes, -1, no_levels) == nullptr)
    fail("check_attributes");
  if (check_single(1) != nullptr || check_single(2) == nullptr) fail("check_single");
  if (check_rows(a, 2) != nullptr || check_rows(a, 3) == nullptr) fail("check_rows");
  a.size = 12;
  if (check_scale(full, a, 13) != nullptr || check_scale(full, a, 12) == nullptr)
    fail("check_scale");
  Shape grown = x, unknown = {{2, -1}, 2};
  output_shape(full, grown);
  output_shape(full, unknown);
  if (grown.dims[2] != 5 || unknown.dims[1] != -1) fail("output_shape");
}

void test_chunks() {
  for (int64_t rows : {0, 1, 7, 1000, 1000000}) {
    for (int64_t size : {0, 1, 768, 100000}) {
      const int64_t chunk = rows_per_chunk(rows, size);
      if (chunk < 1 || (rows + chunk - 1) / chunk > 256) fail("rows_per_chunk");
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const size_t longest = argc > 1 ? strtoul(argv[1], nullptr, 10) : 20000;
  test_checks();
  test_chunks();
  for (size_t i = 0; i < op_count; ++i) {
    for (ElementType type : {ElementType::FLOAT, ElementType::FLOAT16, ElementType::BFLOAT16}) {
      for (size_t size : {0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 47, 63, 64, 65, 127, 128,
                          129, 383, 384, 767, 768, 769, 1024, 4097, 16384, 16411}) {
        if (size > longest) continue;
        if (cuda::extended(ops[i]))
          run_extended(ops[i], type, size < 100 ? 5u : 2u, size);
        else
          run_case({ops[i], type, size < 100 ? 5u : 2u, size, 1e-5});
      }
      if (!cuda::extended(ops[i])) run_case({ops[i], type, 700, 40, 1e-3});
    }
  }
  printf("%ld values compared, %d failures\n", compared, failures);
  return failures == 0 && compared > 0 ? 0 : 1;
}
