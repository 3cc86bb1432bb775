// Measures calls whose decision is not in the strategy cache, and which calls need one.
//
//   ./bazelw run //benchmarks:strategy_cache
//
// Times are those of a process that owns one of eight ranks; tensors are small. A call is timed when it is new, and
// once more when its decision is in the cache.
#include <ATen/Parallel.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/randn.h>
#include <c10/core/GradMode.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

ABSL_FLAG(int64_t, keys, 1'000'000, "different calls in the test of memory");

namespace dtensor::benchmarks {
namespace {

double microseconds(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

uint64_t misses(const DeviceMesh& mesh) { return strategy_cache(mesh.world()).stats().misses; }

// All lists of R, S(0) and S(1), one placement per mesh dim.
std::vector<Placements> layouts(int64_t mesh_ndim) {
  std::vector<Placements> all = {{}};
  for (int64_t m = 0; m < mesh_ndim; ++m) {
    std::vector<Placements> longer;
    for (const Placements& prefix : all) {
      for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
        longer.push_back(prefix);
        longer.back().push_back(p);
      }
    }
    all = std::move(longer);
  }
  return all;
}

// Four operators on some 2,500 tensors of different sizes and layouts, so small that the time is not that of
// arithmetic.
void time_misses(const std::vector<int64_t>& mesh_shape, double most, Gates& gates) {
  const DeviceMesh mesh(World::fake(8, 0), mesh_shape);
  const std::vector<Placements> all = layouts(mesh.ndim());
  const at::Tensor w = zeros({8, 8}, mesh);
  std::vector<at::Tensor> inputs;
  for (int64_t i = 0; inputs.size() < 2500; ++i) {
    for (const Placements& placements : all) inputs.push_back(zeros({8 + i, 8}, mesh, placements));
  }
  std::vector<double> times_of_misses, times_of_hits;
  for (std::vector<double>* times : {&times_of_misses, &times_of_hits}) {
    for (const at::Tensor& x : inputs) {
      times->push_back(microseconds([&] { x.add(x); }));
      times->push_back(microseconds([&] { x.mul(2); }));
      times->push_back(microseconds([&] { x.mm(w); }));
      times->push_back(microseconds([&] { x.sum(0); }));
    }
  }
  const double miss = median(times_of_misses), hit = median(times_of_hits);
  const std::string where = mesh.to_string();
  gates.at_most("microseconds of a call that is not in the strategy cache, " + where, miss, most);
  const Comparison row = {.workload = "call that is not in the strategy cache, " + where,
                          .peer = "the same call, cached",
                          .unit = "us",
                          .theirs = hit,
                          .ours = miss};
  mesh.ndim() == 1 ? gates.at_most(row, miss / hit, 20) : gates.note(row, miss / hit);
}

// Calls that differ in their numbers, or are of lists, have one decision.
void count_misses(Gates& gates) {
  const DeviceMesh mesh(World::fake(8, 0), {8});
  const at::Tensor x = zeros({80, 10}, mesh, {Shard(0)});
  const std::vector<at::Tensor> list(20, x);
  const auto repeat = [&](const std::string& what, const std::function<void(int i)>& call) {
    call(0);
    const uint64_t before = misses(mesh);
    for (int i = 1; i <= 1000; ++i) call(i);
    gates.at_most("misses of 1000 calls, " + what, static_cast<double>(misses(mesh) - before), 0);
  };
  repeat("add of another alpha", [&](int i) { x.add(x, i); });
  repeat("mul by another number", [&](int i) { x.mul(i + 0.5); });
  repeat("_foreach_add of 20 tensors and another number", [&](int i) { at::_foreach_add(list, i); });
}

// Attention of one new token to all tokens before it.
at::Tensor attend(const at::Tensor& query, const at::Tensor& keys, const at::Tensor& values, int64_t length) {
  const at::Tensor scores = query.matmul(keys.narrow(2, 0, length).transpose(2, 3)).mul(0.25);
  return scores.softmax(-1).matmul(values.narrow(2, 0, length));
}

// A token at a time, heads sharded. A length that was not seen before is a miss for every operator that has it.
void time_decode(Gates& gates) {
  constexpr int64_t kTokens = 256;
  const DeviceMesh mesh(World::fake(8, 0), {8});
  const auto make = [&](int64_t length) { return at::randn({4, 1, length, 16}); };
  const at::Tensor query = make(1), keys = make(kTokens), values = make(kTokens);
  const auto sharded = [&](const at::Tensor& local) { return from_local({local}, mesh, {Shard(1)}); };
  const at::Tensor our_query = sharded(query), our_keys = sharded(keys), our_values = sharded(values);
  for (const char* lengths : {"new lengths", "known lengths"}) {
    const uint64_t before = misses(mesh);
    std::vector<double> ours, theirs, ratios;
    for (int64_t length = 1; length <= kTokens; ++length) {
      ours.push_back(microseconds([&] { attend(our_query, our_keys, our_values, length); }));
      theirs.push_back(microseconds([&] { attend(query, keys, values, length); }));
      ratios.push_back(ours.back() / theirs.back());
    }
    const std::string what = absl::StrCat("decode of ", kTokens, " tokens, ", lengths);
    gates.note(compared(what, "plain LibTorch", {median(ours), median(theirs), median(ratios)}), median(ratios));
    const double missed = static_cast<double>(misses(mesh) - before);
    if (lengths == std::string("new lengths")) {
      gates.note({.workload = what + ": misses per token"}, missed / kTokens);
    } else {
      gates.at_most(what + ": misses", missed, 0);
    }
  }
}

// The cache is full after 16,384 of the calls; from then on memory stays as it is.
void check_memory(Gates& gates) {
  const DeviceMesh mesh(World::abstract(8), {8});
  const int64_t keys = absl::GetFlag(FLAGS_keys);
  int64_t at_first = 0;
  for (int64_t i = 0; i < keys; ++i) {
    const at::Tensor x = zeros({8 + i, 8}, mesh, {Shard(0)});
    x.add(x);
    if (i == keys / 10) at_first = resident_bytes();
  }
  gates.at_most(absl::StrCat("memory after ", keys, " different calls / after a tenth of them"),
                static_cast<double>(resident_bytes()) / static_cast<double>(at_first), 1.05);
}

int run() {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  Gates gates;
  time_misses({8}, 10, gates);
  time_misses({2, 4}, 30, gates);
  time_misses({2, 2, 2}, 100, gates);
  count_misses(gates);
  time_decode(gates);
  check_memory(gates);
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("strategy_cache", "Times calls whose decision is not in the strategy cache.", argc,
                                     argv, dtensor::benchmarks::run);
}
