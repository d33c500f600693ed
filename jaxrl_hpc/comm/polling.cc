// Collectives of compiled programs that poll: begin (MPI_I…), then MPI_Test until it is complete. Between
// tests a rank spins for some microseconds, then yields its core, then sleeps for longer and longer, so that
// waiting takes no core from ranks that work.
//
// Compiled without mpi.h: the functions of the MPI library in use are given by address (polling.py), and
// handles are ints (MPICH) or pointers (Open MPI, the standard ABI). So one build serves every MPI.

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

constexpr int64_t kMicrosecond = 1000;
constexpr int64_t kYield = 100 * kMicrosecond;     // of yielding after spinning
constexpr int64_t kFirstNap = 20 * kMicrosecond;     // then naps of an eighth of the time waited so far,
constexpr int64_t kUsualNap = 500 * kMicrosecond;    // within these bounds; after long waits naps of a 32nd:
constexpr int64_t kLongestNap = 5000 * kMicrosecond;  // a sum has several rounds, each as late as a nap
constexpr int64_t kGatherBytes = 1 << 16;          // up to here one message beats two of less data

struct Library {
  void *iallreduce, *iallgather, *ialltoall, *ibcast, *test;
  void* in_place;
  int64_t handle_bytes;
} library;

std::atomic<int64_t> waited_total, cpu_total;  // nanoseconds, for measurements

int64_t Now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec t;
  clock_gettime(clock, &t);
  return t.tv_sec * 1000000000 + t.tv_nsec;
}

void Nap(int64_t nanoseconds) {
  static thread_local const int precise = prctl(PR_SET_TIMERSLACK, kMicrosecond);  // else naps are 50 µs longer
  (void)precise;
  timespec t{nanoseconds / 1000000000, nanoseconds % 1000000000};
  nanosleep(&t, nullptr);
}

template <typename Handle>
struct Mpi {
  using Reduce = int (*)(const void*, void*, int, Handle, Handle, Handle, Handle*);
  using Gather = int (*)(const void*, int, Handle, void*, int, Handle, Handle, Handle*);
  using Broadcast = int (*)(void*, int, Handle, int, Handle, Handle*);
  using Test = int (*)(Handle*, int*, void*);

  Handle comm, type, op;
  int64_t spin;  // nanoseconds
  Handle request{};

  static Handle Of(int64_t value) { return (Handle)(intptr_t)value; }

  int Wait() {
    auto test = reinterpret_cast<Test>(library.test);
    alignas(16) char status[256];
    int done = 0;
    if (int error = test(&request, &done, status)) return error;
    if (done) return 0;
    const int64_t start = Now(), cpu = Now(CLOCK_THREAD_CPUTIME_ID);
    for (;;) {
      if (int error = test(&request, &done, status)) return error;
      const int64_t waited = Now() - start;
      if (done) {
        waited_total += waited;
        cpu_total += Now(CLOCK_THREAD_CPUTIME_ID) - cpu;
        return 0;
      }
      if (waited < spin) continue;
      if (waited < spin + kYield)
        sched_yield();
      else
        Nap(std::min(std::max(std::clamp(waited / 8, kFirstNap, kUsualNap), waited / 32), kLongestNap));
    }
  }

  int Sum(const void* in, void* out, int count) {
    const void* from = in == out ? library.in_place : in;
    auto begin = reinterpret_cast<Reduce>(library.iallreduce);
    if (int error = begin(from, out, count, type, op, comm, &request)) return error;
    return Wait();
  }

  int Exchange(void* function, const void* in, void* out, int count) {
    auto begin = reinterpret_cast<Gather>(function);
    if (int error = begin(in, count, type, out, count, type, comm, &request)) return error;
    return Wait();
  }

  int GatherAll(const void* in, void* out, int count) { return Exchange(library.iallgather, in, out, count); }

  int FromFirst(const void* in, void* out, int count, int64_t bytes) {
    if (in != out) std::memcpy(out, in, bytes);
    auto begin = reinterpret_cast<Broadcast>(library.ibcast);
    if (int error = begin(out, count, type, 0, comm, &request)) return error;
    return Wait();
  }

  // x_0 + x_1 + … in order of rank. Large vectors: each rank adds up one part of all of them, and the parts
  // are gathered; the same sums with 2 / ranks of the data.
  int OrderedSum(const float* in, float* out, int64_t count, int64_t ranks) {
    static thread_local std::vector<float> terms, parts;
    if (ranks == 2 || 4 * count * ranks <= kGatherBytes) {
      terms.resize(count * ranks);
      if (int error = GatherAll(in, terms.data(), count)) return error;
      Add(terms.data(), out, count, count, ranks);
      return 0;
    }
    const int64_t part = (count + ranks - 1) / ranks;
    parts.resize(part * ranks);
    terms.resize(part * ranks);
    std::memcpy(parts.data(), in, 4 * count);
    std::fill(parts.begin() + count, parts.end(), 0.0f);
    if (int error = Exchange(library.ialltoall, parts.data(), terms.data(), part)) return error;
    Add(terms.data(), terms.data(), part, part, ranks);
    if (int error = GatherAll(terms.data(), parts.data(), part)) return error;
    std::memcpy(out, parts.data(), 4 * count);
    return 0;
  }

  static void Add(const float* terms, float* out, int64_t count, int64_t stride, int64_t ranks) {
    for (int64_t i = 0; i < count; ++i) {
      float total = terms[i];
      for (int64_t rank = 1; rank < ranks; ++rank) total += terms[rank * stride + i];
      out[i] = total;
    }
  }
};

enum Kind { kSum = 0, kGather = 1, kFirst = 2, kOrderedSum = 3 };

template <typename Handle>
int Run(ffi::AnyBuffer in, ffi::AnyBuffer out, int64_t kind, int64_t comm, int64_t type, int64_t op, int64_t ranks,
        int64_t spin) {
  using M = Mpi<Handle>;
  M mpi{M::Of(comm), M::Of(type), M::Of(op), spin * kMicrosecond};
  const int count = static_cast<int>(in.element_count());
  switch (kind) {
    case kSum:
      return mpi.Sum(in.untyped_data(), out.untyped_data(), count);
    case kGather:
      return mpi.GatherAll(in.untyped_data(), out.untyped_data(), count);
    case kFirst:
      return mpi.FromFirst(in.untyped_data(), out.untyped_data(), count, in.size_bytes());
    default:
      return mpi.OrderedSum(static_cast<const float*>(in.untyped_data()), static_cast<float*>(out.untyped_data()),
                            count, ranks);
  }
}

ffi::Error Collective(ffi::AnyBuffer in, ffi::Token, ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::Token>,
                      int64_t kind, int64_t comm, int64_t type, int64_t op, int64_t ranks, int64_t spin) {
  auto run = library.handle_bytes == sizeof(int) ? Run<int> : Run<void*>;
  const int error = run(in, *out, kind, comm, type, op, ranks, spin);
  if (error) return ffi::Error::Internal("MPI error " + std::to_string(error) + " in a collective");
  return ffi::Error::Success();
}

}  // namespace

extern "C" void PollingUse(const Library* given) { library = *given; }
extern "C" int64_t PollingWaited() { return waited_total; }
extern "C" int64_t PollingCpu() { return cpu_total; }

XLA_FFI_DEFINE_HANDLER_SYMBOL(PollingCollective, Collective,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Token>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Ret<ffi::Token>()
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("comm")
                                  .Attr<int64_t>("type")
                                  .Attr<int64_t>("op")
                                  .Attr<int64_t>("ranks")
                                  .Attr<int64_t>("spin"));
