// Hundreds of steps of training, with --config=long a thousand, in several processes need no more of anything than the
// first three hundred, and learn what one process with as many ranks does, bit for bit. Runs in every rank's process.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <c10/core/GradMode.h>
#include <dirent.h>
#include <malloc.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "comm/comm_event.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_planner.h"
#include "propagation/strategy_cache.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"

namespace dtensor {
using namespace internal;

namespace {

const int kSteps = testing::long_tests() ? 1000 : 300;
// Until every plan and decision is made, and the flight recorder is full of the collectives that it remembers (2000).
constexpr int kWarmUp = 300;
// What threads may keep for reuse. Of leaks it finds those of 4 KiB a step in 300 steps, and of 1.1 KiB in 1,000.
constexpr int64_t kMostGrowth = int64_t{1} << 20;

// A sanitizer keeps freed memory, to find later uses of it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#elif defined(__has_feature)
constexpr bool kSanitized = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer);
#else
constexpr bool kSanitized = false;
#endif

// What malloc has given out and not got back, in all arenas. Not the resident memory, in which the kernel counts pages
// of libraries when it maps them and unused memory until it takes it back.
int64_t allocated_bytes() {
  const auto info = ::mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}

int64_t entries(const char* folder) {
  DIR* dir = ::opendir(folder);
  if (dir == nullptr) return -1;
  int64_t n = 0;
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

int64_t collectives() {
  int64_t n = 0;
  for (const int64_t count : collectives_issued()) n += count;
  return n;
}

// What must not grow.
struct Held {
  int64_t files = entries("/proc/self/fd"), threads = entries("/proc/self/task"), bytes = allocated_bytes();
};

// Vocab-parallel table, column- and row-wise layer; a batch that divides by nothing.
struct Model {
  explicit Model(const DeviceMesh& mesh) : mesh(mesh) {
    at::manual_seed(3);
    const auto parameter = [&](at::IntArrayRef shape, const Placement& placement) {
      return distribute_tensor(0.1 * at::randn(shape), mesh, {placement}).detach().requires_grad_();
    };
    parameters = {parameter({33, 16}, Shard(0)), parameter({16, 30}, Shard(1)), parameter({30, 16}, Shard(0))};
  }

  // The loss before the step.
  double step() {
    const std::vector<at::Tensor> ids(mesh.local_ranks().size(), at::randint(33, {7, 5}, at::kLong));
    const auto x = redistribute(at::embedding(parameters[0], from_local(ids, mesh, {Replicate()})), {Replicate()});
    const auto y = redistribute(at::matmul(at::relu(at::matmul(x, parameters[1])), parameters[2]), {Shard(0)});
    const auto z = redistribute(y, {Shard(1)});
    spec = meta_for_read(y).spec->id();
    plan = cached_plan(meta_for_read(y).spec, {Shard(1)}).get();
    const auto loss = (full_tensor(z) - 1).square().mean();
    loss.backward();
    const c10::NoGradGuard no_grad;
    for (auto& p : parameters) {
      p.sub_(p.grad(), 0.1);
      p.mutable_grad().reset();
    }
    return loss.item<double>();
  }

  const DeviceMesh mesh;
  std::vector<at::Tensor> parameters;
  // Of the last step: an interned spec and a remembered plan, neither of which is held here.
  uint64_t spec = 0;
  const void* plan = nullptr;
};

TEST_CASE("soak: nothing grows in hundreds of steps") {
  REQUIRE(std::getenv("DTENSOR_DEBUG") == nullptr);  // what users have
  const DeviceMesh mesh(job_world(), {job_world().size()}, {"tp"});
  const StrategyCache& cache = strategy_cache(job_world());
  std::vector<double> losses;
  {
    Model model(mesh);
    for (int i = 0; i < kWarmUp; ++i) losses.push_back(model.step());
    REQUIRE(collectives() >= 2000);
    const int64_t begin = collectives();
    const auto warm = cache.stats();
    const uint64_t spec = model.spec;
    const void* plan = model.plan;
    const Held before;
    for (int i = 0; i < kSteps; ++i) losses.push_back(model.step());
    const Held after;
    std::printf("[soak] %ld collectives; allocated %+ld KiB of %ld; %ld files, %ld threads\n",
                static_cast<long>(collectives() - begin), static_cast<long>((after.bytes - before.bytes) / 1024),
                static_cast<long>(before.bytes / 1024), static_cast<long>(after.files),
                static_cast<long>(after.threads));
    REQUIRE(before.bytes > 0);
    if (!kSanitized) CHECK(after.bytes - before.bytes < kMostGrowth);
    REQUIRE(before.files > 0);
    CHECK(after.files == before.files);
    CHECK(after.threads == before.threads);
    CHECK(cache.stats().misses == warm.misses);
    CHECK(cache.stats().hits > warm.hits);
    CHECK(cache.stats().size == warm.size);
    CHECK(model.spec == spec);
    CHECK(model.plan == plan);
  }
  Model twin(DeviceMesh(twin_world(), mesh.shape(), {"tp"}));
  std::vector<double> expected;
  for (int i = 0; i < kWarmUp + kSteps; ++i) expected.push_back(twin.step());
  CHECK(losses == expected);
  CHECK(losses.back() < 0.5 * losses.front());
}

}  // namespace
}  // namespace dtensor
