// Valid convolutions of images with channels last, and their gradients, as calls out of compiled programs.
//
// Every pass is a sum of outer products in registers: numbers of x, each spread over a vector, times vectors of
// weights (forward), of dy (gradient of the weights) or of turned weights (gradient of x). Nothing is unfolded to
// patches. Bytes are read as they are. Sums do not depend on the number of threads: an image belongs to one of a
// fixed number of parts, and gradients of the weights are added up part by part.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define CONVOLUTION_X86 1
#include <immintrin.h>
#if __GNUC__ >= 11
#define CONVOLUTION_BFLOAT16 1
#endif
#endif

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kParts = 16;  // of a batch

using Word = float;  // or the bits of two bfloat16
typedef uint16_t __attribute__((may_alias)) Bits;  // of one, inside a word

struct Shape {
  int64_t images, height, width, channels, side, stride, filters;
  int64_t rows, columns;  // of y

  Shape(int64_t images, int64_t height, int64_t width, int64_t channels, int64_t side, int64_t stride, int64_t filters)
      : images(images), height(height), width(width), channels(channels), side(side), stride(stride),
        filters(filters), rows((height - side) / stride + 1), columns((width - side) / stride + 1) {}
};

// Where the operands of a sum lie, in words.
struct Span {
  int64_t rows, x_row, w_row;
  int64_t steps, x_step, w_step;
  int64_t spacing;  // of the accumulators' places in x
};

struct Epilogue {
  int64_t spacing;  // of the accumulators' places in the result
  float scale;
  bool add;  // to what is there
};

// The passes for one image, of bytes or floats.
struct Passes {
  void (*forward)(const Shape&, const void* x, const Word* weights, const float* bias, float scale, float* y);
  void (*weights)(const Shape&, const void* x, const float* dy, float scale, float* dw);  // added to dw
  void (*inputs)(const Shape&, const float* dy, const Word* turned, float* dx);
  std::vector<Word> (*words)(const float* weights, int64_t rows, int64_t filters);
};

// Weights [side, side, channels, filters] turned for `Passes::inputs`: for each of the s x s places of a block the m x m
// shifts backwards, then filters, then channels.
std::vector<float> Turned(const Shape& s, const float* weights) {
  const int64_t m = s.side / s.stride;
  std::vector<float> turned(s.side * s.side * s.channels * s.filters);
  float* to = turned.data();
  for (int64_t row = 0; row < s.stride; ++row)
    for (int64_t column = 0; column < s.stride; ++column)
      for (int64_t i = m - 1; i >= 0; --i)
        for (int64_t j = m - 1; j >= 0; --j) {
          const int64_t place = (i * s.stride + row) * s.side + j * s.stride + column;
          const float* from = weights + place * s.channels * s.filters;
          for (int64_t f = 0; f < s.filters; ++f)
            for (int64_t c = 0; c < s.channels; ++c) *to++ = from[c * s.filters + f];
        }
  return turned;
}

#ifdef CONVOLUTION_X86

#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
using Vector = __m256;
constexpr int kLanes = 8, kTall = 6;
constexpr bool kHalf = false;
inline Vector Zero() { return _mm256_setzero_ps(); }
inline Vector Load(const float* x) { return _mm256_loadu_ps(x); }
inline void Store(float* x, Vector v) { _mm256_storeu_ps(x, v); }
inline Vector Scaled(Vector v, float by, Vector plus) { return _mm256_fmadd_ps(v, _mm256_set1_ps(by), plus); }
struct Single {
  using Operand = __m256;
  static Operand Read(const Word* w) { return _mm256_loadu_ps(w); }
  static Operand Spread(Word x) { return _mm256_set1_ps(x); }
  static Vector Times(Vector sum, Operand w, Operand x) { return _mm256_fmadd_ps(w, x, sum); }
};
using Half = Single;
#include "passes.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#ifdef CONVOLUTION_BFLOAT16
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512bf16,fma")
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,fma")
#endif
namespace avx512 {
using Vector = __m512;
constexpr int kLanes = 16, kTall = 10;
#ifdef CONVOLUTION_BFLOAT16
constexpr bool kHalf = true;
#else
constexpr bool kHalf = false;
#endif
inline Vector Zero() { return _mm512_setzero_ps(); }
inline Vector Load(const float* x) { return _mm512_loadu_ps(x); }
inline void Store(float* x, Vector v) { _mm512_storeu_ps(x, v); }
inline Vector Scaled(Vector v, float by, Vector plus) { return _mm512_fmadd_ps(v, _mm512_set1_ps(by), plus); }
struct Single {
  using Operand = __m512;
  static Operand Read(const Word* w) { return _mm512_loadu_ps(w); }
  static Operand Spread(Word x) { return _mm512_set1_ps(x); }
  static Vector Times(Vector sum, Operand w, Operand x) { return _mm512_fmadd_ps(w, x, sum); }
};
#ifdef CONVOLUTION_BFLOAT16
struct Half {
  using Operand = __m512i;
  static Operand Read(const Word* w) { return _mm512_loadu_si512(w); }
  static Operand Spread(Word x) { return _mm512_castps_si512(_mm512_set1_ps(x)); }
  static Vector Times(Vector sum, Operand w, Operand x) {
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
  }
};
#else
using Half = Single;
#endif
#include "passes.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

// What the processor can do: 0 nothing of this, 1 AVX2, 2 AVX-512, 3 with products of bfloat16.
int Level() {
#ifdef CONVOLUTION_X86
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl")) {
    return 1;
  }
#ifdef CONVOLUTION_BFLOAT16
  if (__builtin_cpu_supports("avx512bf16")) return 3;
#endif
  return 2;
#else
  return 0;
#endif
}

// work(part) for all parts, by this thread and those of the pool that have time.
template <class Work>
void InParallel(ffi::ThreadPool& pool, int64_t parts, const Work& work) {
  const int64_t helpers = std::min<int64_t>(pool.num_threads(), parts) - 1;
  if (helpers <= 0) {
    for (int64_t part = 0; part < parts; ++part) work(part);
    return;
  }
  struct Shared {
    std::atomic<int64_t> next{0};
    int64_t done = 0;
    std::mutex mutex;
    std::condition_variable all;
  };
  auto shared = std::make_shared<Shared>();
  auto help = [shared, parts, &work] {  // one that comes late finds no part left and touches nothing else
    int64_t done = 0;
    for (int64_t part; (part = shared->next.fetch_add(1)) < parts; ++done) work(part);
    if (done == 0) return;
    std::lock_guard<std::mutex> lock(shared->mutex);
    shared->done += done;
    if (shared->done == parts) shared->all.notify_all();
  };
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(decltype(help)(help));
  help();
  std::unique_lock<std::mutex> lock(shared->mutex);
  shared->all.wait(lock, [&] { return shared->done == parts; });
}

// work(first, last) of the images of each part.
template <class Work>
void OverImages(ffi::ThreadPool& pool, int64_t images, const Work& work) {
  const int64_t parts = std::min(images, kParts);
  InParallel(pool, parts, [&](int64_t part) { work(part, images * part / parts, images * (part + 1) / parts); });
}

using Floats = ffi::Buffer<ffi::F32>;
using Result = ffi::Result<Floats>;

Passes Choose(int64_t level, bool half, bool bytes) {
#ifdef CONVOLUTION_X86
  static const int64_t best = Level();
  level = std::min(level, best);
  return level < 2 ? avx2::Choose(half, bytes) : avx512::Choose(half && level > 2, bytes);
#else
  return {};
#endif
}

bool Bytes(const ffi::AnyBuffer& x) { return x.element_type() == ffi::U8; }

const char* At(const ffi::AnyBuffer& x, const Shape& s, int64_t image) {
  const int64_t size = s.height * s.width * s.channels * (Bytes(x) ? 1 : sizeof(float));
  return static_cast<const char*>(x.untyped_data()) + image * size;
}

Shape ShapeOf(ffi::Span<const int64_t> x, ffi::Span<const int64_t> kernel, int64_t stride) {
  return Shape(x[0], x[1], x[2], x[3], kernel[0], stride, kernel[3]);
}

ffi::Error RunForward(ffi::ThreadPool pool, ffi::AnyBuffer x, Floats kernel, Floats bias, Result y, int64_t stride,
                      float scale, bool half, int64_t level) {
  const Shape s = ShapeOf(x.dimensions(), kernel.dimensions(), stride);
  const Passes passes = Choose(level, half, Bytes(x));
  const std::vector<Word> words = passes.words(kernel.typed_data(), s.side * s.side * s.channels, s.filters);
  OverImages(pool, s.images, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t image = first; image < last; ++image) {
      passes.forward(s, At(x, s, image), words.data(), bias.typed_data(), scale,
                     y->typed_data() + image * s.rows * s.columns * s.filters);
    }
  });
  return ffi::Error::Success();
}

ffi::Error RunWeights(ffi::ThreadPool pool, ffi::AnyBuffer x, Floats dy, Result dw, int64_t stride, float scale,
                      bool half, int64_t level) {
  const Shape s = ShapeOf(x.dimensions(), dw->dimensions(), stride);
  const Passes passes = Choose(level, half, Bytes(x));
  const int64_t size = dw->element_count();
  std::vector<float> sums(std::min(s.images, kParts) * size);
  OverImages(pool, s.images, [&](int64_t part, int64_t first, int64_t last) {
    for (int64_t image = first; image < last; ++image) {
      passes.weights(s, At(x, s, image), dy.typed_data() + image * s.rows * s.columns * s.filters, scale,
                     sums.data() + part * size);
    }
  });
  float* total = dw->typed_data();
  std::fill(total, total + size, 0.0f);
  for (size_t first = 0; first < sums.size(); first += size) {
    for (int64_t i = 0; i < size; ++i) total[i] += sums[first + i];
  }
  return ffi::Error::Success();
}

ffi::Error RunInputs(ffi::ThreadPool pool, Floats dy, Floats kernel, Result dx, int64_t stride, bool half,
                     int64_t level) {
  const Shape s = ShapeOf(dx->dimensions(), kernel.dimensions(), stride);
  const Passes passes = Choose(level, half, false);
  const std::vector<float> turned = Turned(s, kernel.typed_data());
  const std::vector<Word> words = passes.words(turned.data(), s.side * s.side * s.filters, s.channels);
  OverImages(pool, s.images, [&](int64_t, int64_t first, int64_t last) {
    for (int64_t image = first; image < last; ++image) {
      passes.inputs(s, dy.typed_data() + image * s.rows * s.columns * s.filters, words.data(),
                    dx->typed_data() + image * s.height * s.width * s.channels);
    }
  });
  return ffi::Error::Success();
}

}  // namespace

extern "C" int ConvolutionLevel() { return Level(); }

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvolutionForward, RunForward,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("stride")
                                  .Attr<float>("scale")
                                  .Attr<bool>("half")
                                  .Attr<int64_t>("level"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvolutionWeights, RunWeights,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("stride")
                                  .Attr<float>("scale")
                                  .Attr<bool>("half")
                                  .Attr<int64_t>("level"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(ConvolutionInputs, RunInputs,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<Floats>()
                                  .Arg<Floats>()
                                  .Ret<Floats>()
                                  .Attr<int64_t>("stride")
                                  .Attr<bool>("half")
                                  .Attr<int64_t>("level"));
