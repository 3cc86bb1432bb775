// Random programs on every rank of a world whose ranks do not exist: each of them plans the same communication,
// whatever the sizes of its parts and the numbers in them.
//
// DTENSOR_FUZZ_SEED and DTENSOR_FUZZ_PROGRAMS choose other programs, and more of them.
#include <c10/util/Exception.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/generate.h"
#include "tests/fuzz/intercept.h"
#include "tests/fuzz/random.h"
#include "tests/fuzz/rank_calls.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/long_tests.h"
#include "tests/testing/part_order.h"

namespace dtensor::fuzz {
using namespace internal;

namespace {

// Whether shapes depend on values: how often a mask is true, how many values are different, where to split.
bool shapes_depend_on_values(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const std::string& name = op.schema().name();
  if (name == "aten::nonzero" || absl::StrContains(name, "unique")) return true;
  if (absl::StrContains(op.schema().overload_name(), "tensor_indices")) return true;
  const auto is_mask = [](const c10::IValue& index) {
    return index.isTensor() && index.toTensor().defined() &&
           c10::isIntegralType(index.toTensor().scalar_type(), /*includeBool=*/true) &&
           index.toTensor().element_size() == 1;
  };
  return std::any_of(arguments.begin(), arguments.end(), [&](const c10::IValue& argument) {
    if (!argument.isList()) return false;
    const auto indices = argument.toListRef();
    return std::any_of(indices.begin(), indices.end(), is_mask);
  });
}

// One rank's run of a program.
class OneRank {
 public:
  explicit OneRank(const DeviceMesh& mesh) : execution_(mesh) {}

  // The collectives of `part`, one per line; nullopt if it raised an error, as kernels may on numbers that no peer
  // sent.
  template <typename Piece>
  std::optional<std::string> calls_of(const Piece& part) {
    const Interception numbers([this](const c10::OperatorHandle& op, const torch::jit::Stack& arguments) -> AfterCall {
      if (shapes_depend_on_values(op, arguments)) has_shapes_of_values_ = true;
      if (op.schema().name() == "aten::diagonal") has_diagonal_ = true;
      if (op.schema().name() != "aten::_local_scalar_dense") return {};
      return [this](const torch::jit::Stack& results) { numbers_ << results.back() << ' '; };
    });
    CommDebugMode comm;
    try {
      part(execution_);
    } catch (const c10::Error&) {
      return std::nullopt;
    }
    return text_of_calls(comm);
  }

  // Shapes and layouts of all tensors.
  std::string layouts() const {
    std::ostringstream text;
    for (const auto& [id, t] : execution_.tensors()) {
      text << id << ": " << (!t.defined() ? "undefined" : is_dtensor(t) ? spec_of(t)->to_string() : "plain") << '\n';
    }
    return text.str();
  }
  // A tensor with a part whose dims are in another order in memory than the strides of the tensor say; "" without one,
  // or after diagonal(): of an expanded tensor, that has the strides of a dense one where its parts have gaps.
  std::string out_of_order() const {
    if (has_diagonal_) return "";
    for (const auto& [id, t] : execution_.tensors()) {
      if (!t.defined() || !is_dtensor(t) || !is_dense(spec_of(t)->meta())) continue;
      for (const at::Tensor& part : meta_without_sync(t).locals) {
        if (testing::is_in_order(part, *spec_of(t))) continue;
        return c10::str("t", id, " of strides ", t.strides(), " has a part ", part.sizes(), " of strides ",
                        part.strides());
      }
    }
    return "";
  }
  bool has_shapes_of_values() const { return has_shapes_of_values_; }
  // The numbers that the program read, on which later calls may depend.
  std::string numbers() const { return numbers_.str(); }

 private:
  Execution execution_;
  std::ostringstream numbers_;
  bool has_shapes_of_values_ = false, has_diagonal_ = false;
};

class AllRanks {
 public:
  explicit AllRanks(const std::vector<int64_t>& mesh) {
    for (const DeviceMesh& of_rank : mesh_of_each_rank(mesh)) ranks_.emplace_back(of_rank);
  }

  // Runs a part of the program on every rank. Returns false if the rest cannot be compared: a rank raised an error, or
  // read a number that another one did not, for want of what their peers would send.
  template <typename Piece>
  bool run(const Piece& part) {
    std::vector<std::optional<std::string>> calls;
    for (OneRank& rank : ranks_) calls.push_back(rank.calls_of(part));
    if (std::count(calls.begin(), calls.end(), std::nullopt) > 0) return false;
    for (const OneRank& rank : ranks_) {
      if (rank.has_shapes_of_values() || rank.numbers() != ranks_[0].numbers()) return false;
    }
    for (size_t r = 0; r < ranks_.size(); ++r) {
      CAPTURE(r);
      CHECK(ranks_[r].out_of_order() == "");
      CHECK(*calls[r] == *calls[0]);
      CHECK(ranks_[r].layouts() == ranks_[0].layouts());
    }
    num_calls_ += std::count(calls[0]->begin(), calls[0]->end(), '\n');
    return true;
  }

  int64_t num_calls() const { return num_calls_; }

 private:
  std::deque<OneRank> ranks_;
  int64_t num_calls_ = 0;
};

TEST_CASE("random programs: all ranks plan the same communication", "[fuzz][ranks_agree]") {
  const uint64_t seed = number_from_env("DTENSOR_FUZZ_SEED", 1);
  const uint64_t programs = number_from_env("DTENSOR_FUZZ_PROGRAMS", testing::long_tests() ? 20000 : 1500);
  int64_t calls = 0;
  for (uint64_t index = 0; index < programs; ++index) {
    const Program program = generate(seed, index);
    CAPTURE(seed, index, to_string(program));
    const DispatchScopeGuard scope([&](DispatchScope& s) { s.replicate_unsupported = program.replicate_unsupported; });
    AllRanks ranks(program.mesh);
    bool goes_on = ranks.run([&](Execution& e) {
      for (const Leaf& leaf : program.leaves) e.add(leaf);
    });
    for (size_t k = 0; k < program.steps.size() && goes_on; ++k) {
      goes_on = ranks.run([&](Execution& e) { e.run(program.steps[k]); });
    }
    if (goes_on && program.order > 0) ranks.run([&](Execution& e) { e.gradients(program, 1); });
    calls += ranks.num_calls();
  }
  CHECK(calls > static_cast<int64_t>(programs));
}

}  // namespace
}  // namespace dtensor::fuzz
