// Random fractions and the way down the tree: sum_tree.draw and sum_tree.find.

#ifndef JAXRL_HPC_REPLAY_NATIVE_DESCEND_H_
#define JAXRL_HPC_REPLAY_NATIVE_DESCEND_H_

#include <cstdint>
#include <cstring>

#include "layout.h"

namespace {

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
      for (int k = block + half; k < block + 2 * half; ++k) values[k] = values[block + half - 1] + values[k];
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

}  // namespace

#endif  // JAXRL_HPC_REPLAY_NATIVE_DESCEND_H_
