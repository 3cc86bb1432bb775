// Random programs in a job of four processes, in which one rank reads tensors and the others do not: the job ends, and
// all values equal those of the same program without the reads.
//
// DTENSOR_FUZZ_SEED and DTENSOR_FUZZ_PROGRAMS choose other programs, and more of them.
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>

#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/generate.h"
#include "tests/fuzz/random.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

const World& job_world() {
  static const World world = World::from_env();
  return world;
}

// Reads `t` in one of several ways. Parts that are not available are an error on this rank only.
void read(const at::Tensor& t, uint64_t way) {
  const at::NoGradGuard no_grad;
  try {
    if (way % 3 == 0) DTensor(t).local(0).clone();
    if (way % 3 == 1) to_local(t)[0].clone();
    if (way % 3 == 2) std::ostringstream() << DTensor(t);
  } catch (const c10::Error& e) {
    CHECK_THAT(e.what_without_backtrace(), Catch::Contains("fetch_parts"));
  }
}

struct Reads {
  std::mt19937_64 random;  // the same on all ranks
  bool here = false;       // whether this rank reads

  void after_step(const Execution& execution) {
    const uint64_t which = random(), way = random();
    if (!here || execution.tensors().empty()) return;
    auto it = execution.tensors().begin();
    std::advance(it, which % execution.tensors().size());
    if (it->second.defined() && is_dtensor(it->second)) read(it->second, way);
  }
};

// The values of all tensors and gradients; an operator's error ends the program, on all ranks alike.
std::vector<at::Tensor> run(const Program& program, const DeviceMesh& mesh, Reads reads) {
  const DispatchScopeGuard scope([&](DispatchScope& s) { s.replicate_unsupported = program.replicate_unsupported; });
  Execution execution(mesh);
  std::vector<at::Tensor> values;
  try {
    for (const Leaf& leaf : program.leaves) execution.add(leaf);
    for (const Step& step : program.steps) {
      execution.run(step);
      reads.after_step(execution);
    }
    if (program.order > 0) values = execution.gradients(program, 1);
    reads.after_step(execution);
  } catch (const c10::Error&) {
    // The programs without reads end in the same way.
  }
  for (const auto& [id, t] : execution.tensors()) values.push_back(t);
  for (at::Tensor& t : values) {
    if (t.defined()) t = is_dtensor(t) ? full_tensor(t.detach()) : t.detach();
  }
  return values;
}

bool are_equal(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.eq(b) | (a.ne(a) & b.ne(b))).all().item<bool>();
}

TEST_CASE("random programs in a job: reads on one rank change neither calls nor values", "[fuzz][reads]") {
  const uint64_t seed = number_from_env("DTENSOR_FUZZ_SEED", 1);
  const uint64_t most = number_from_env("DTENSOR_FUZZ_PROGRAMS", testing::long_tests() ? 300 : 150);
  std::map<std::vector<int64_t>, DeviceMesh> meshes;
  uint64_t ran = 0;
  for (uint64_t index = 0; ran < most; ++index) {
    const Program program = generate(seed, index);
    int64_t ranks = 1;
    for (const int64_t n : program.mesh) ranks *= n;
    if (ranks != job_world().size()) continue;
    ++ran;
    const auto [it, is_new] = meshes.try_emplace(program.mesh);
    if (is_new) it->second = DeviceMesh(job_world(), program.mesh);
    CAPTURE(seed, index, to_string(program));
    const auto reader = static_cast<int64_t>(index) % ranks;
    const auto without = run(program, it->second, {std::mt19937_64(index), false});
    const auto with = run(program, it->second, {std::mt19937_64(index), job_world().owned_ranks()[0] == reader});
    REQUIRE(with.size() == without.size());
    for (size_t i = 0; i < with.size(); ++i) CHECK(are_equal(with[i], without[i]));
  }
}

}  // namespace
}  // namespace dtensor::fuzz
