#include "benchmarks/measure.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <mutex>

#include "absl/container/flat_hash_map.h"

namespace dtensor::benchmarks {
namespace {

using Call = std::function<void()>;

constexpr double kTurnSeconds = 0.5e-3;  // several times the time slice in which a clock or an interrupt matters

// Seconds of one of `calls` calls.
double time_turn(const Call& call, int calls) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / calls;
}

double cpu_seconds() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// instructions.py starts valgrind without counting, and LibTorch's libraries then load in a quarter of the time. This
// call starts the counting. It is CALLGRIND_START_INSTRUMENTATION, written out since valgrind may be installed after
// this was compiled; without valgrind it does nothing.
void start_counting() {
#ifdef __x86_64__
  const uint64_t request[6] = {('C' << 24 | 'T' << 16) + 4};
  uint64_t answer = 0;
  asm volatile("rolq $3, %%rdi; rolq $13, %%rdi; rolq $61, %%rdi; rolq $51, %%rdi; xchgq %%rbx, %%rbx"
               : "+d"(answer)
               : "a"(request)
               : "cc", "memory");
#endif
}

// The names are what instructions.py looks for. Without a tail call: valgrind would not see it return.
__attribute__((noinline)) void counted_call(const Call& call) {
  call();
  asm volatile("");
}

__attribute__((noinline)) void reported_call(const Call& call) {
  counted_call(call);
  asm volatile("");
}

// The allocator of keep_memory_of_tensors(). A block's context is its address, as callers of raw_allocate() need, so
// its size is looked up. Threads of Gloo release tensors, too, hence the mutex.
class ReusedMemory final : public c10::Allocator {
 public:
  // Lives as long as the process.
  static ReusedMemory& instance() {
    static auto* const memory = new ReusedMemory();
    return *memory;
  }
  c10::DataPtr allocate(size_t bytes) override {
    const std::lock_guard lock(mutex_);
    auto& blocks = free_[bytes];
    if (blocks.empty()) {
      void* const memory = std::aligned_alloc(c10::gAlignment, (bytes / c10::gAlignment + 1) * c10::gAlignment);
      TORCH_CHECK(memory != nullptr, "no memory for ", bytes, " bytes");
      bytes_of_[memory] = bytes;
      blocks.push_back(memory);
    }
    void* const memory = blocks.back();
    blocks.pop_back();
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  static void release(void* memory) {
    ReusedMemory& self = instance();
    const std::lock_guard lock(self.mutex_);
    self.free_[self.bytes_of_.at(memory)].push_back(memory);
  }

  std::mutex mutex_;
  absl::flat_hash_map<size_t, std::vector<void*>> free_;  // by size
  absl::flat_hash_map<void*, size_t> bytes_of_;
};

}  // namespace

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

double time_calls(const Call& call) {
  call(), call();
  std::vector<double> times;
  for (double spent = 0; spent < 0.1 || times.size() < 9; spent += times.back()) times.push_back(time_turn(call, 1));
  return median(std::move(times));
}

PairedTimes time_pairs(const Call& ours, const Call& theirs, int pairs) {
  for (const Call& call : {ours, theirs}) time_turn(call, 2);  // these decide, and fill caches
  const double longer = std::max(time_turn(ours, 1), time_turn(theirs, 1));
  const int calls = std::clamp(static_cast<int>(kTurnSeconds / std::max(longer, 1e-9)), 1, 2000);
  std::vector<double> our_times, their_times, ratios;
  const int dropped = pairs / 10;
  for (int i = 0; i < dropped + pairs; ++i) {
    double our_time = 0, their_time = 0;
    // The second finds memory as the first left it.
    if (i % 2 == 0) our_time = time_turn(ours, calls), their_time = time_turn(theirs, calls);
    if (i % 2 == 1) their_time = time_turn(theirs, calls), our_time = time_turn(ours, calls);
    if (i < dropped) continue;
    our_times.push_back(our_time * 1e6);
    their_times.push_back(their_time * 1e6);
    ratios.push_back(our_time / their_time);
  }
  return {median(our_times), median(their_times), median(ratios)};
}

std::vector<std::vector<double>> time_turns(const std::vector<Call>& calls, int64_t turns) {
  std::vector<std::vector<double>> times(calls.size());
  for (const Call& call : calls) call(), call();
  for (int64_t i = 0; i < turns; ++i) {
    for (size_t c = 0; c < calls.size(); ++c) {
      const double begin = cpu_seconds();
      calls[c]();
      times[c].push_back(cpu_seconds() - begin);
    }
  }
  return times;
}

std::vector<std::vector<double>> time_turns(const std::vector<Call>& calls, int64_t turns, c10::Device device) {
  if (device.is_cpu()) return time_turns(calls, turns);
  constexpr int kCallsOfTurn = 8;
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream stream = guard.getStream(device);
  std::vector<std::vector<double>> times(calls.size());
  for (const Call& call : calls) call(), call();
  for (int64_t i = 0; i < turns; ++i) {
    for (size_t c = 0; c < calls.size(); ++c) {
      c10::Event begin(device.type(), c10::EventFlag::BACKEND_DEFAULT), end(device.type(), begin.flag());
      begin.record(stream);
      for (int k = 0; k < kCallsOfTurn; ++k) calls[c]();
      end.record(stream);
      end.synchronize();
      times[c].push_back(1e-3 * begin.elapsedTime(end) / kCallsOfTurn);
    }
  }
  return times;
}

double median_microseconds(const std::vector<double>& seconds) { return median(seconds) * 1e6; }

double median_ratio(const std::vector<double>& seconds, const std::vector<double>& other_seconds) {
  std::vector<double> ratios;
  for (size_t i = 0; i < seconds.size(); ++i) ratios.push_back(seconds[i] / other_seconds[i]);
  return median(ratios);
}

void count_instructions(const std::string& what, const Call& call) {
  start_counting();
  reported_call(call);
  std::printf("%s\n", what.c_str());
}

void keep_released_memory() {
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
}

void keep_memory_of_tensors() { c10::SetCPUAllocator(&ReusedMemory::instance(), /*priority=*/1); }

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace dtensor::benchmarks
