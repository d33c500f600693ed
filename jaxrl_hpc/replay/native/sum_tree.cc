// The sum tree of sum_tree.py as XLA custom calls for CPUs. Same layout, same operations in the same
// order, so that the results are equal bit for bit; build with -ffp-contract=off. AVX2 is chosen at run
// time. Leading batch axes are loops over trees that lie one behind the other.

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "descend.h"
#include "layout.h"
#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

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
