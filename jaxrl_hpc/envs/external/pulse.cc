// Records when a program begins and ends a call that may never return: two counters and the step,
// in memory that belongs to the host. The handle that goes through keeps calls in order.

#include <atomic>
#include <cstdint>
#include <cstring>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

struct Memory {
  std::atomic<int64_t> begun, ended, step;
};

ffi::Error Mark(ffi::AnyBuffer handle, ffi::Buffer<ffi::S32> step, ffi::Result<ffi::AnyBuffer> out,
                int64_t address, bool begins) {
  auto* memory = reinterpret_cast<Memory*>(address);
  if (begins) memory->step.store(step.typed_data()[0]);
  (begins ? memory->begun : memory->ended).fetch_add(1);
  if (out->untyped_data() != handle.untyped_data())
    std::memcpy(out->untyped_data(), handle.untyped_data(), handle.size_bytes());
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(PulseMark, Mark,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<int64_t>("address")
                                  .Attr<bool>("begins"));
