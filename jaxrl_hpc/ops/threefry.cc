// JAX's counter-based random numbers, Threefry-2x32 with 20 rounds (Salmon et al. 2011), as one call.
// XLA on CPUs runs the same rounds as a loop of some hundred small steps. Words are equal bit for bit.

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

template <int kBy>
inline __attribute__((always_inline)) void Mix(uint32_t& x0, uint32_t& x1) {
  x0 += x1;
  x1 = ((x1 << kBy) | (x1 >> (32 - kBy))) ^ x0;
}

// Written out, so that compilers turn the loop into vectors.
inline __attribute__((always_inline)) void Rounds(const uint32_t* k0, const uint32_t* k1, const uint32_t* c0,
                                                  const uint32_t* c1, int64_t n, uint32_t* __restrict__ high,
                                                  uint32_t* __restrict__ low) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t key0 = k0[i], key1 = k1[i], key2 = key0 ^ key1 ^ 0x1BD11BDAu;
    uint32_t x0 = c0[i] + key0, x1 = c1[i] + key1;
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

void RoundsPlain(const uint32_t* k0, const uint32_t* k1, const uint32_t* c0, const uint32_t* c1, int64_t n,
                 uint32_t* high, uint32_t* low) {
  Rounds(k0, k1, c0, c1, n, high, low);
}

#if defined(__x86_64__) && defined(__GNUC__)
#define THREEFRY_AVX2 1
__attribute__((target("avx2"))) void RoundsAvx2(const uint32_t* k0, const uint32_t* k1, const uint32_t* c0,
                                                const uint32_t* c1, int64_t n, uint32_t* high,
                                                uint32_t* low) {
  Rounds(k0, k1, c0, c1, n, high, low);
}
#endif

using Words = ffi::Buffer<ffi::U32>;

ffi::Error Run(Words k0, Words k1, Words c0, Words c1, ffi::Result<Words> high, ffi::Result<Words> low) {
  auto rounds = RoundsPlain;
#ifdef THREEFRY_AVX2
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) rounds = RoundsAvx2;
#endif
  rounds(k0.typed_data(), k1.typed_data(), c0.typed_data(), c1.typed_data(),
         static_cast<int64_t>(high->element_count()), high->typed_data(), low->typed_data());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(Threefry, Run,
                              ffi::Ffi::Bind()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Arg<Words>()
                                  .Ret<Words>()
                                  .Ret<Words>());
