// Sleeps inside a compiled program, without a core: a stand-in for work that happens elsewhere.

#include <errno.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// For the sum or the largest of the given seconds; the result is zeros, to be added to what shall wait.
ffi::Error Sleep(ffi::Buffer<ffi::F32> seconds, ffi::Result<ffi::Buffer<ffi::F32>> zeros, bool in_turn) {
  double total = 0;
  for (size_t i = 0; i < seconds.element_count(); ++i) {
    const double one = std::max(0.0f, seconds.typed_data()[i]);
    total = in_turn ? total + one : std::max(total, one);
  }
  timespec left{static_cast<time_t>(total), static_cast<long>((total - std::floor(total)) * 1e9)};
  while (nanosleep(&left, &left) && errno == EINTR) {
  }
  std::fill_n(zeros->typed_data(), zeros->element_count(), 0.0f);
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(PauseSleep, Sleep,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Attr<bool>("in_turn"));
