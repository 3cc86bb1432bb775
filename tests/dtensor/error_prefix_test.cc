// Errors name the user's call exactly once, however deep they are detected.
#include <ATen/ops/embedding.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <functional>
#include <iterator>
#include <regex>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "mesh/device_mesh.h"
#include "plan/redistribute_plan.h"
#include "plan/spec.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

TEST_CASE("errors of kernels name the call and the rank", "[dtensor][errors]") {
  const DeviceMesh mesh(World::local(3), {3}, {"tp"});
  const auto table = distribute_tensor(at::ones({4, 2}), mesh, {Replicate()});
  const auto ids = from_local(
      {at::tensor({1, 2}, at::kLong), at::tensor({3, 4}, at::kLong), at::tensor({1, 0}, at::kLong)}, mesh, {Shard(0)});
  CHECK(testing::error_text([&] { at::embedding(table, ids); }) ==
        "index out of range in self (in aten::embedding(f32[4, 2](R), i64[6](S(0))), on the parts of rank 1)");
  // Of a call whose layouts are known, too.
  const auto two = distribute_tensor(at::full({6}, 2), mesh, {Shard(0)});
  for (const auto& divisor : {two, two, ids}) {
    const std::string error = testing::error_text([&] { at::floor_divide(two, divisor); });
    CHECK(error == (divisor.is_same(ids) ? "ZeroDivisionError (in aten::floor_divide(i64[6](S(0)), i64[6](S(0))), "
                                           "on the parts of rank 2)"
                                         : ""));
  }
}

TEST_CASE("errors about placements name the user's call once", "[dtensor][errors]") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto x = distribute_tensor(at::ones({4, 4}), mesh, {Shard(0)});
  FromLocalOptions run_check, grad;
  run_check.run_check = true;
  using Call = std::function<void(const Placements&)>;
  const std::vector<at::Tensor> parts = {at::ones({2, 4}), at::ones({2, 4})};
  const std::vector<std::pair<std::string, Call>> calls = {
      {"redistribute", [&](const Placements& p) { redistribute(x, p); }},
      {"redistribute", [&](const Placements& p) { redistribute(x, mesh, p); }},
      {"redistribute_many", [&](const Placements& p) { redistribute_many({x}, {p}); }},
      {"distribute_tensor",
       [&](const Placements& p) {
         distribute_tensor(at::ones({4, 4}), mesh, p);
       }},
      {"from_local", [&](const Placements& p) { from_local(parts, mesh, p); }},
      {"from_local", [&](const Placements& p) { from_local(parts, mesh, p, run_check); }},
      {"to_local", [&](const Placements& p) { to_local(x, p); }},
      {"full_tensor", [&](const Placements& p) { full_tensor(x, p); }},
      {"plan_of", [&](const Placements& p) { plan_of(x, p); }},
      {"zeros",
       [&](const Placements& p) {
         zeros({4, 4}, mesh, p);
       }},
      {"Spec",
       [&](const Placements& p) {
         Spec::get(mesh, p, {4, 4}, at::kFloat);
       }},
  };
  for (const auto& [name, call] : calls) {
    const auto error = [&, &call = call](const Placements& p) {
      try {
        call(p);
      } catch (const c10::Error& e) {
        return std::string(e.what_without_backtrace());
      }
      return std::string();
    };
    INFO(name);
    const std::string prefix = absl::StrCat("[", name, "] ");
    const std::string dim = error({Shard(7)}), number = error({Shard(0), Shard(0)});
    INFO(dim << "\n" << number);
    CHECK(absl::EndsWith(dim, "S(7) over mesh dim 0: a tensor of 2 dims has no dim 7; expected -2 to 1"));
    CHECK(absl::EndsWith(number, "give one placement per mesh dim"));
    for (const std::string& text : {dim, number}) {
      CHECK(absl::StartsWith(text, prefix));
      const std::regex names(R"(\[[A-Za-z_]+\] )");
      CHECK(std::distance(std::sregex_iterator(text.begin(), text.end(), names), std::sregex_iterator()) == 1);
    }
  }
}

}  // namespace
}  // namespace dtensor
