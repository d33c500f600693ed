// The sum tree of sum_tree.py as XLA custom calls for CPUs. Same layout, same operations in the same
// order, so that the results are equal bit for bit; build with -ffp-contract=off. AVX2 is chosen at run
// time. Leading batch axes are loops over trees that lie one behind the other.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "xla/ffi/api/ffi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#define TREE_AVX2 1
#define AVX2 __attribute__((target("avx2")))
#endif

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kCacheLine = 16;  // float32 numbers
constexpr int kMaxLevels = 32;
constexpr int64_t kBlock = 256;  // draws that descend together, level by level
constexpr int64_t kCached = 1 << 14;  // nodes of a level that is taken to be in the cache
constexpr double kBelowOne = 1.0 - 1.0 / 4503599627370496.0;  // 1 - 2^-52

struct Layout {
  int levels = 0;
  int64_t count[kMaxLevels];
  int64_t offset[kMaxLevels];
  int64_t size = 0;
};

Layout MakeLayout(int64_t capacity, int64_t fanout) {
  Layout layout;
  const int64_t unit = fanout > kCacheLine ? fanout : kCacheLine;
  for (int64_t count = capacity;; count = (count + fanout - 1) / fanout) {
    layout.count[layout.levels] = count;
    layout.offset[layout.levels++] = layout.size;
    layout.size += (count + unit - 1) / unit * unit;
    if (count <= fanout) return layout;
  }
}

constexpr int Log2(int fanout) { return fanout == 1 ? 0 : 1 + Log2(fanout / 2); }

// ---------------------------------------------------------------------------------------- sums

template <int K>
inline float Halves(const float* children) {
  float sums[K / 2];
  for (int i = 0; i < K / 2; ++i) sums[i] = children[i] + children[i + K / 2];
  for (int half = K / 4; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) sums[i] = sums[i] + sums[i + half];
  return sums[0];
}

#ifdef TREE_AVX2
template <int K>
AVX2 inline float HalvesAvx2(const float* children) {
  if constexpr (K < 8) {
    return Halves<K>(children);
  } else {
    __m256 sums[K / 8];
    for (int i = 0; i < K / 8; ++i) sums[i] = _mm256_loadu_ps(children + 8 * i);
    for (int half = K / 16; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) sums[i] = _mm256_add_ps(sums[i], sums[i + half]);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(sums[0]), _mm256_extractf128_ps(sums[0], 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
  }
}
#endif

// Recomputes all ancestors of the leaves index[0 … n), or of a whole level where that is less work.
// `Sum` is the summation of K children; `Leaf(i)` is the i-th leaf or negative.
#define TREE_REFRESH(NAME, SUM, ATTRIBUTE)                                                        \
  template <int K>                                                                                \
  ATTRIBUTE void NAME(const Layout& layout, float* tree, const int32_t* index, int64_t n) {       \
    int shift = 0;                                                                                \
    for (int level = 1; level < layout.levels; ++level) {                                         \
      shift += Log2(K);                                                                           \
      const float* below = tree + layout.offset[level - 1];                                       \
      float* above = tree + layout.offset[level];                                                 \
      if (layout.count[level] <= n) {                                                             \
        for (int64_t node = 0; node < layout.count[level]; ++node)                                \
          above[node] = SUM<K>(below + node * K);                                                 \
        continue;                                                                                 \
      }                                                                                           \
      for (int64_t i = 0; i < n; ++i) {                                                           \
        if (index[i] < 0 || index[i] >= layout.count[0]) continue;                                \
        const int64_t node = index[i] >> shift;                                                   \
        above[node] = SUM<K>(below + node * K);                                                   \
      }                                                                                           \
    }                                                                                             \
  }                                                                                               \
  /* The same for the leaves first … last. */                                                     \
  template <int K>                                                                                \
  ATTRIBUTE void NAME##Range(const Layout& layout, float* tree, int64_t first, int64_t last) {    \
    for (int level = 1; level < layout.levels; ++level) {                                         \
      first >>= Log2(K);                                                                          \
      last >>= Log2(K);                                                                           \
      const float* below = tree + layout.offset[level - 1];                                       \
      float* above = tree + layout.offset[level];                                                 \
      for (int64_t node = first; node <= last; ++node) above[node] = SUM<K>(below + node * K);    \
    }                                                                                             \
  }

TREE_REFRESH(Refresh, Halves, )
#ifdef TREE_AVX2
TREE_REFRESH(RefreshAvx2, HalvesAvx2, AVX2)
#endif

// ------------------------------------------------------------------------------------- descent

constexpr double kTwo26 = 67108864.0, kTwo52 = 4503599627370496.0;

// Exact in every step.
inline double Fraction(uint32_t high, uint32_t low) {
  const double upper = static_cast<int32_t>(high >> 6), lower = static_cast<int32_t>(low >> 6);
  return (upper * kTwo26 + lower) * (1.0 / kTwo52);
}

inline double ClearTwoBits(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits &= ~uint64_t{3};
  std::memcpy(&x, &bits, sizeof bits);
  return x;
}

// Prefix sums in the order of sum_tree.prefix_sums.
template <int K>
inline void PrefixSums(double* values) {
  for (int half = 1; half < K; half *= 2)
    for (int block = 0; block < K; block += 2 * half)
      for (int k = 0; k < half; ++k) values[block + half + k] = values[block + half - 1] + values[block + half + k];
}

template <int K>
inline int Choose(const float* children, double* fraction) {
  double prefix[K];
  for (int k = 0; k < K; ++k) prefix[k] = children[k];
  PrefixSums<K>(prefix);
  const double target = ClearTwoBits(*fraction * prefix[K - 1]);
  int child = 0;
  while (child < K - 1 && prefix[child] <= target) ++child;
  const double below = child > 0 ? prefix[child - 1] : 0.0;
  const double width = prefix[child] - below;
  const double remains = (target - below) / (width > 0 ? width : 1.0);
  *fraction = remains < kBelowOne ? remains : kBelowOne;
  return child;
}

template <int kBy>
inline __attribute__((always_inline)) void Mix(uint32_t& x0, uint32_t& x1) {
  x0 += x1;
  x1 = ((x1 << kBy) | (x1 >> (32 - kBy))) ^ x0;
}

// Threefry-2x32 of the counters (0, begin + i): the same words as jax's own. Written out, so that
// compilers turn the loop into vectors.
inline __attribute__((always_inline)) void Threefry(uint32_t key0, uint32_t key1, uint32_t begin, int64_t n,
                                                    uint32_t* __restrict__ high, uint32_t* __restrict__ low) {
  const uint32_t key2 = key0 ^ key1 ^ 0x1BD11BDAu;
  for (int64_t i = 0; i < n; ++i) {
    uint32_t x0 = key0, x1 = begin + static_cast<uint32_t>(i) + key1;
    Mix<13>(x0, x1), Mix<15>(x0, x1), Mix<26>(x0, x1), Mix<6>(x0, x1);
    x0 += key1, x1 += key2 + 1;
    Mix<17>(x0, x1), Mix<29>(x0, x1), Mix<16>(x0, x1), Mix<24>(x0, x1);
    x0 += key2, x1 += key0 + 2;
    Mix<13>(x0, x1), Mix<15>(x0, x1), Mix<26>(x0, x1), Mix<6>(x0, x1);
    x0 += key0, x1 += key1 + 3;
    Mix<17>(x0, x1), Mix<29>(x0, x1), Mix<16>(x0, x1), Mix<24>(x0, x1);
    x0 += key1, x1 += key2 + 4;
    Mix<13>(x0, x1), Mix<15>(x0, x1), Mix<26>(x0, x1), Mix<6>(x0, x1);
    high[i] = x0 + key2;
    low[i] = x1 + key0 + 5;
  }
}

template <int K>
void Descend(const Layout& layout, const float* tree, double* fraction, int32_t* node, int64_t n) {
  for (int level = layout.levels - 1; level >= 0; --level) {
    const float* nodes = tree + layout.offset[level];
    const int32_t end = static_cast<int32_t>(layout.count[level] - 1);
    for (int64_t i = 0; i < n; ++i) {
      const int32_t first = node[i] * K;
      const int32_t next = first + Choose<K>(nodes + first, &fraction[i]);
      node[i] = next < end ? next : end;
    }
  }
}

#ifdef TREE_AVX2
// Children 8g … 8g + 7 of four nodes as float64, one vector per child, one lane per node.
AVX2 inline __attribute__((always_inline)) void LoadEight(const char* a, const char* b, const char* c,
                                                          const char* d, __m256d* out) {
  const __m256 r0 = _mm256_loadu_ps(reinterpret_cast<const float*>(a));
  const __m256 r1 = _mm256_loadu_ps(reinterpret_cast<const float*>(b));
  const __m256 r2 = _mm256_loadu_ps(reinterpret_cast<const float*>(c));
  const __m256 r3 = _mm256_loadu_ps(reinterpret_cast<const float*>(d));
  const __m256 t0 = _mm256_unpacklo_ps(r0, r1), t1 = _mm256_unpackhi_ps(r0, r1);
  const __m256 t2 = _mm256_unpacklo_ps(r2, r3), t3 = _mm256_unpackhi_ps(r2, r3);
  const __m256 columns[4] = {_mm256_shuffle_ps(t0, t2, 0x44), _mm256_shuffle_ps(t0, t2, 0xEE),
                             _mm256_shuffle_ps(t1, t3, 0x44), _mm256_shuffle_ps(t1, t3, 0xEE)};
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    out[k] = _mm256_cvtps_pd(_mm256_castps256_ps128(columns[k]));
    out[k + 4] = _mm256_cvtps_pd(_mm256_extractf128_ps(columns[k], 1));
  }
}

// These recur over sizes known to the compiler, so that everything stays in registers.
template <int K>
AVX2 inline __attribute__((always_inline)) void PrefixSumsAvx2(__m256d* values) {
  if constexpr (K > 1) {
    PrefixSumsAvx2<K / 2>(values);
    PrefixSumsAvx2<K / 2>(values + K / 2);
#pragma GCC unroll 32
    for (int k = K / 2; k < K; ++k) values[k] = _mm256_add_pd(values[K / 2 - 1], values[k]);
  }
}

// Binary search for the first of K ascending prefixes that is above the target; destroys them. The child
// found is given as an offset in bytes.
template <int K>
AVX2 inline __attribute__((always_inline)) void SearchAvx2(__m256d* prefix, __m256d target, __m256i* child,
                                                           __m256d* below, __m256d* above) {
  if constexpr (K > 1) {
    const __m256d middle = prefix[K / 2 - 1];
    const __m256d passed = _mm256_cmp_pd(middle, target, _CMP_LE_OQ);
    const __m256i step = _mm256_and_si256(_mm256_castpd_si256(passed), _mm256_set1_epi64x(K / 2 * sizeof(float)));
    *child = _mm256_or_si256(*child, step);
    *below = _mm256_blendv_pd(*below, middle, passed);
    *above = _mm256_blendv_pd(middle, *above, passed);
#pragma GCC unroll 32
    for (int k = 0; k < K / 2 - 1; ++k) prefix[k] = _mm256_blendv_pd(prefix[k], prefix[K / 2 + k], passed);
    SearchAvx2<K / 2>(prefix, target, child, below, above);
  }
}

// One level down for four draws. place: offsets in bytes of the nodes' first children; afterwards those
// of their chosen children's children, or at the last level of the chosen leaves.
template <int K, bool kLast, bool kPrefetch>
AVX2 inline __attribute__((always_inline)) void StepFour(const char* nodes, const char* children,
                                                         double* fraction, int64_t* place) {
  __m256d prefix[K];
#pragma GCC unroll 8
  for (int g = 0; g < K; g += 8) {
    const char* base = nodes + g * sizeof(float);
    LoadEight(base + place[0], base + place[1], base + place[2], base + place[3], prefix + g);
  }
  PrefixSumsAvx2<K>(prefix);
  const __m256d keep = _mm256_castsi256_pd(_mm256_set1_epi64x(~int64_t{3}));
  const __m256d target = _mm256_and_pd(_mm256_mul_pd(_mm256_loadu_pd(fraction), prefix[K - 1]), keep);
  __m256i child = _mm256_setzero_si256();
  __m256d below = _mm256_setzero_pd(), above = prefix[K - 1];
  SearchAvx2<K>(prefix, target, &child, &below, &above);
  const __m256d remains = _mm256_div_pd(_mm256_sub_pd(target, below), _mm256_sub_pd(above, below));
  _mm256_storeu_pd(fraction, _mm256_min_pd(remains, _mm256_set1_pd(kBelowOne)));
  __m256i* places = reinterpret_cast<__m256i*>(place);
  __m256i next = _mm256_add_epi64(_mm256_loadu_si256(places), child);
  if constexpr (!kLast) next = _mm256_slli_epi64(next, Log2(K));
  _mm256_storeu_si256(places, next);
  if constexpr (kPrefetch) {
    // The level below is read once the whole block is here: time enough for the memory to answer.
    for (int i = 0; i < 4; ++i)
      for (int line = 0; line < K; line += kCacheLine)
        __builtin_prefetch(children + place[i] + line * sizeof(float));
  }
}

// The tree must not be empty: then every node on the way has mass, and no width is zero.
template <int K>
AVX2 void DescendAvx2(const Layout& layout, const float* tree, double* fraction, int32_t* node, int64_t n) {
  alignas(64) int64_t place[kBlock] = {};
  for (int level = layout.levels - 1; level > 0; --level) {
    const char* nodes = reinterpret_cast<const char*>(tree + layout.offset[level]);
    const char* children = reinterpret_cast<const char*>(tree + layout.offset[level - 1]);
    if (layout.count[level - 1] > kCached) {
      for (int64_t i = 0; i < n; i += 4) StepFour<K, false, true>(nodes, children, fraction + i, place + i);
    } else {
      for (int64_t i = 0; i < n; i += 4) StepFour<K, false, false>(nodes, children, fraction + i, place + i);
    }
  }
  const char* leaves = reinterpret_cast<const char*>(tree);
  for (int64_t i = 0; i < n; i += 4) StepFour<K, true, false>(leaves, leaves, fraction + i, place + i);
  for (int64_t i = 0; i < n; ++i) node[i] = static_cast<int32_t>(place[i] / sizeof(float));
}

bool HasAvx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}
#endif

// ---------------------------------------------------------------------------------- operations

// Where the fractions of a sample come from: words that are given, or a seed.
struct Draws {
  const uint32_t* words;  // [n, 2], or the seed [2]
  bool seeded;
  bool stratified;
  int64_t number;
};

// Fractions begin … begin + n, n <= kBlock.
inline __attribute__((always_inline)) void Fill(const Draws& draws, int64_t begin, int64_t n,
                                                double* fraction) {
  if (!draws.seeded) {
    const uint32_t* words = draws.words + 2 * begin;
    for (int64_t i = 0; i < n; ++i) fraction[i] = Fraction(words[2 * i], words[2 * i + 1]);
    return;
  }
  uint32_t high[kBlock], low[kBlock];
  Threefry(draws.words[0], draws.words[1], static_cast<uint32_t>(begin), n, high, low);
  for (int64_t i = 0; i < n; ++i) fraction[i] = Fraction(high[i], low[i]);
  if (!draws.stratified) return;
  const double number = static_cast<double>(draws.number);
  for (int64_t i = 0; i < n; ++i) {
    const double part = (static_cast<double>(static_cast<int32_t>(begin + i)) + fraction[i]) / number;
    const double inside = part < kBelowOne ? part : kBelowOne;
    fraction[i] = __builtin_floor(inside * kTwo52) * (1.0 / kTwo52);  // to 52 bits, like to_words
  }
}

void FillPlain(const Draws& draws, int64_t begin, int64_t n, double* fraction) {
  Fill(draws, begin, n, fraction);
}
#ifdef TREE_AVX2
AVX2 void FillAvx2(const Draws& draws, int64_t begin, int64_t n, double* fraction) {
  Fill(draws, begin, n, fraction);
}
#endif

template <int K>
void FindOne(const Layout& layout, const float* tree, const Draws& draws, int64_t n, bool simd,
             int32_t* index, float* mass) {
  alignas(64) double fraction[kBlock];
  alignas(64) int32_t node[kBlock];
  const bool empty = !(Halves<K>(tree + layout.offset[layout.levels - 1]) > 0);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t block = n - begin < kBlock ? n - begin : kBlock;
    const int64_t whole = (block + 3) / 4 * 4;  // lanes that fill up the last vector draw 0
    for (int64_t i = block; i < whole; ++i) fraction[i] = 0.0;
    for (int64_t i = 0; i < whole; ++i) node[i] = 0;
#ifdef TREE_AVX2
    if (simd) FillAvx2(draws, begin, block, fraction);
    else FillPlain(draws, begin, block, fraction);
    if constexpr (K >= 8) {
      if (simd && !empty) DescendAvx2<K>(layout, tree, fraction, node, whole);
      else Descend<K>(layout, tree, fraction, node, block);
    } else {
      Descend<K>(layout, tree, fraction, node, block);
    }
#else
    FillPlain(draws, begin, block, fraction);
    Descend<K>(layout, tree, fraction, node, block);
#endif
    for (int64_t i = 0; i < block; ++i) {
      index[begin + i] = node[i];
      mass[begin + i] = tree[node[i]];
    }
  }
}

// Of equal indices the largest value wins: every leaf concerned is marked first, then maximised.
template <int K>
void UpdateOne(const Layout& layout, float* tree, const int32_t* index, const float* value, int64_t n,
               bool revive, bool simd) {
  const int64_t capacity = layout.count[0];
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] < 0 || index[i] >= capacity) continue;
    float* leaf = tree + index[i];
    if (revive || *leaf > 0) *leaf = -1.0f;
  }
  for (int64_t i = 0; i < n; ++i) {
    if (index[i] < 0 || index[i] >= capacity) continue;
    float* leaf = tree + index[i];
    if (*leaf != 0 && *leaf < value[i]) *leaf = value[i];
  }
#ifdef TREE_AVX2
  if (simd) return RefreshAvx2<K>(layout, tree, index, n);
#endif
  Refresh<K>(layout, tree, index, n);
}

template <int K>
void AssignOne(const Layout& layout, float* tree, int64_t start, const float* value, int64_t n, bool simd) {
  const int64_t capacity = layout.count[0];
  start = ((start % capacity) + capacity) % capacity;
  while (n > 0) {
    const int64_t run = n < capacity - start ? n : capacity - start;
    std::memcpy(tree + start, value, run * sizeof(float));
#ifdef TREE_AVX2
    if (simd) RefreshAvx2Range<K>(layout, tree, start, start + run - 1);
    else RefreshRange<K>(layout, tree, start, start + run - 1);
#else
    RefreshRange<K>(layout, tree, start, start + run - 1);
#endif
    value += run;
    n -= run;
    start = 0;
  }
}

bool Simd(bool allowed) {
#ifdef TREE_AVX2
  return allowed && HasAvx2();
#else
  return false;
#endif
}

template <typename F>
ffi::Error WithFanout(int64_t fanout, F f) {
  switch (fanout) {
    case 2: f(std::integral_constant<int, 2>()); break;
    case 4: f(std::integral_constant<int, 4>()); break;
    case 8: f(std::integral_constant<int, 8>()); break;
    case 16: f(std::integral_constant<int, 16>()); break;
    case 32: f(std::integral_constant<int, 32>()); break;
    case 64: f(std::integral_constant<int, 64>()); break;
    default: return ffi::Error::InvalidArgument("sum tree: unknown fanout");
  }
  return ffi::Error::Success();
}

// The number of trees in a batch, or 0 when the sizes do not fit together.
int64_t Trees(const Layout& layout, int64_t elements) {
  return layout.size > 0 && elements % layout.size == 0 ? elements / layout.size : 0;
}

// XLA aliases input and output; where it could not, this is the copy.
float* InPlace(ffi::AnyBuffer in, ffi::Result<ffi::AnyBuffer> out) {
  float* result = out->typed_data<float>();
  if (in.untyped_data() != out->untyped_data()) std::memcpy(result, in.untyped_data(), in.size_bytes());
  return result;
}

ffi::Error FindAll(ffi::AnyBuffer tree, ffi::AnyBuffer words, ffi::Result<ffi::AnyBuffer> index,
                   ffi::Result<ffi::AnyBuffer> mass, int64_t capacity, int64_t fanout, bool seeded,
                   bool stratified, bool simd) {
  const Layout layout = MakeLayout(capacity, fanout);
  const int64_t trees = Trees(layout, tree.element_count());
  if (trees == 0) return ffi::Error::InvalidArgument("sum tree: the array has another size");
  const int64_t n = static_cast<int64_t>(index->element_count()) / trees;
  return WithFanout(fanout, [&](auto k) {
    for (int64_t t = 0; t < trees; ++t) {
      const uint32_t* own = words.typed_data<uint32_t>() + t * (seeded ? 2 : 2 * n);
      FindOne<decltype(k)::value>(layout, tree.typed_data<float>() + t * layout.size,
                                  Draws{own, seeded, stratified, n}, n, Simd(simd),
                                  index->typed_data<int32_t>() + t * n, mass->typed_data<float>() + t * n);
    }
  });
}

ffi::Error Find(ffi::AnyBuffer tree, ffi::AnyBuffer words, ffi::Result<ffi::AnyBuffer> index,
                ffi::Result<ffi::AnyBuffer> mass, int64_t capacity, int64_t fanout, bool simd) {
  return FindAll(tree, words, index, mass, capacity, fanout, false, false, simd);
}

ffi::Error Sample(ffi::AnyBuffer tree, ffi::AnyBuffer seed, ffi::Result<ffi::AnyBuffer> index,
                  ffi::Result<ffi::AnyBuffer> mass, int64_t capacity, int64_t fanout, bool stratified,
                  bool simd) {
  return FindAll(tree, seed, index, mass, capacity, fanout, true, stratified, simd);
}

ffi::Error Update(ffi::AnyBuffer tree, ffi::AnyBuffer index, ffi::AnyBuffer value,
                  ffi::Result<ffi::AnyBuffer> out, int64_t capacity, int64_t fanout, bool revive, bool simd) {
  const Layout layout = MakeLayout(capacity, fanout);
  const int64_t trees = Trees(layout, tree.element_count());
  if (trees == 0) return ffi::Error::InvalidArgument("sum tree: the array has another size");
  const int64_t n = static_cast<int64_t>(index.element_count()) / trees;
  float* data = InPlace(tree, out);
  return WithFanout(fanout, [&](auto k) {
    for (int64_t t = 0; t < trees; ++t)
      UpdateOne<decltype(k)::value>(layout, data + t * layout.size, index.typed_data<int32_t>() + t * n,
                                    value.typed_data<float>() + t * n, n, revive, Simd(simd));
  });
}

ffi::Error Assign(ffi::AnyBuffer tree, ffi::AnyBuffer start, ffi::AnyBuffer value,
                  ffi::Result<ffi::AnyBuffer> out, int64_t capacity, int64_t fanout, bool simd) {
  const Layout layout = MakeLayout(capacity, fanout);
  const int64_t trees = Trees(layout, tree.element_count());
  if (trees == 0) return ffi::Error::InvalidArgument("sum tree: the array has another size");
  const int64_t n = static_cast<int64_t>(value.element_count()) / trees;
  float* data = InPlace(tree, out);
  return WithFanout(fanout, [&](auto k) {
    for (int64_t t = 0; t < trees; ++t)
      AssignOne<decltype(k)::value>(layout, data + t * layout.size, start.typed_data<int32_t>()[t],
                                    value.typed_data<float>() + t * n, n, Simd(simd));
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(SumTreeFind, Find,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("capacity")
                                  .Attr<int64_t>("fanout")
                                  .Attr<bool>("simd"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(SumTreeSample, Sample,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("capacity")
                                  .Attr<int64_t>("fanout")
                                  .Attr<bool>("stratified")
                                  .Attr<bool>("simd"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(SumTreeUpdate, Update,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("capacity")
                                  .Attr<int64_t>("fanout")
                                  .Attr<bool>("revive")
                                  .Attr<bool>("simd"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(SumTreeAssign, Assign,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("capacity")
                                  .Attr<int64_t>("fanout")
                                  .Attr<bool>("simd"));
