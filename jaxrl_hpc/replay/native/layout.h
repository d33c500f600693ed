// The layout of the tree of sum_tree.py and the sums of its nodes.

#ifndef JAXRL_HPC_REPLAY_NATIVE_LAYOUT_H_
#define JAXRL_HPC_REPLAY_NATIVE_LAYOUT_H_

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#define TREE_AVX2 1
#define AVX2 __attribute__((target("avx2")))
#endif

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
// A macro, because a function for AVX2 and a plain one cannot be one template.
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

}  // namespace

#endif  // JAXRL_HPC_REPLAY_NATIVE_LAYOUT_H_
