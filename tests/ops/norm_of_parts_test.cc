// Norms that are not reduced yet: they combine like norms, pass operators that move elements, and cost one reduction
// together.
#include <torch/autograd.h>
#include <torch/nn.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "placement/parse_placements.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::Tensor;

constexpr ReduceOp kNorm2 = ReduceOp::kNorm2;

Placements placements_of(const Tensor& t) { return spec_of(t)->placements(); }

bool close(const Tensor& t, const Tensor& plain) { return torch::allclose(full_tensor(t), plain, 1e-12, 1e-14); }

Tensor signed_numbers(torch::IntArrayRef sizes) {
  return torch::arange(1, 1 + c10::multiply_integers(sizes), torch::kDouble).sub(7).view(sizes);
}

TEST_CASE("norms of parts: a placement like others", "[placement][norm]") {
  CHECK(to_string(Partial(kNorm2)) == "P(norm2)");
  CHECK(parse_placements("P(norm2)S(0)").value() == Placements{Partial(kNorm2), Shard(0)});
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  CHECK_THAT(testing::error_text([&] {
               dtensor::zeros({2}, mesh, {Partial(), Partial(kNorm2)});
             }),
             Catch::Contains("norm2"));
}

TEST_CASE("norms of parts: reduce to the root of the sum of squares, with the sign of the addends",
          "[redistribute][norm]") {
  const DeviceMesh mesh(World::local(3), {3}, {"tp"});
  const std::vector<Tensor> parts = {torch::tensor({2., -1., 0., 6.}), torch::tensor({1., -2., 0., 0.}),
                                     torch::tensor({2., -2., 0., 8.})};
  const Tensor t = from_local(parts, mesh, {Partial(kNorm2)});
  const Tensor expected = torch::tensor({3., -3., 0., 10.});
  CHECK(torch::equal(full_tensor(t), expected));
  for (const Placement& to : {Replicate(), Shard(0)}) {
    const Tensor moved = redistribute(t, {to});
    CHECK(placements_of(moved) == Placements{to});
    CHECK(torch::equal(full_tensor(moved), expected));
  }
  // The first rank keeps its value.
  const Tensor values = torch::tensor({-5., 1e100, 0.25, std::numeric_limits<double>::infinity()}, torch::kDouble);
  CHECK(torch::equal(full_tensor(distribute_tensor(values, mesh, {Partial(kNorm2)})), values));
}

TEST_CASE("norms of parts: over any layout", "[ops][norm]") {
  for (const bool has_data : {true, false}) {
    const DeviceMesh mesh(has_data ? World::local(6) : World::abstract(6), {2, 3}, {"dp", "tp"});
    const Tensor plain = signed_numbers({7, 5});
    for (const char* from :
         {"RR", "S(0)R", "RS(1)", "S(0)S(1)", "S(1)S(0)", "S(0)S(0)", "R_S(0, 2)", "PR", "PP", "PS(0)"}) {
      CAPTURE(from);
      const Placements placements = parse_placements(from).value();
      const Tensor x = distribute_tensor(plain, mesh, placements);
      const Tensor whole = x.norm(), rows = x.norm(2, {1}, true), columns = torch::linalg_vector_norm(x, 2, {0});
      const Tensor of_norms = torch::linalg_vector_norm(columns, 2), in_parts = torch::cat({columns, columns}).norm();
      if (!has_data) continue;
      CHECK(close(whole, plain.norm()));
      CHECK(close(rows, plain.norm(2, {1}, true)));
      CHECK(close(columns, torch::linalg_vector_norm(plain, 2, {0})));
      CHECK(close(of_norms, plain.norm()));
      CHECK(close(in_parts, plain.norm() * std::sqrt(2.)));
    }
  }
}

TEST_CASE("norms of parts: pass operators that move elements, and no others", "[ops][norm]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const Tensor plain = signed_numbers({6, 3}), x = distribute_tensor(plain, mesh, {Shard(0)});
  const Tensor negative = distribute_tensor(torch::tensor({-2.5}, torch::kDouble), mesh);
  CommDebugMode comm;
  const Tensor norms = torch::linalg_vector_norm(x, 2, {0});
  CHECK(placements_of(norms) == Placements{Partial(kNorm2)});
  const Tensor moved = torch::cat({norms.unsqueeze(0).slice(1, 1).reshape({2}), negative}).flip(0);
  CHECK(placements_of(moved) == Placements{Partial(kNorm2)});
  CHECK(comm.total() == 0);
  const Tensor p = torch::linalg_vector_norm(plain, 2, {0});
  CHECK(close(moved, torch::cat({p.slice(0, 1), torch::tensor({-2.5}, torch::kDouble)}).flip(0)));
  CHECK(close(moved.norm(), torch::cat({p.slice(0, 1), torch::tensor({-2.5}, torch::kDouble)}).norm()));
  CHECK(close(norms + norms, p + p));
  CHECK(close(norms * -2, p * -2));
  CHECK(close(norms.sum(), p.sum()));
  CHECK(close(norms.to(torch::kFloat), p.to(torch::kFloat)));
  CHECK(close(norms.norm(1), p.norm(1)));
  CHECK(close(norms.amax(), p.amax()));
  Tensor written = torch::linalg_vector_norm(x, 2, {0});
  written.select(0, 1).fill_(-3);
  CHECK(placements_of(written) == Placements{Partial(kNorm2)});
  written.uniform_(2, 2 + 1e-13);
  CHECK(close(written, torch::full({3}, 2., torch::kDouble)));
  written = torch::linalg_vector_norm(x, 2, {0});
  written.select(0, 1).fill_(-3);
  CHECK(close(written, torch::where(torch::arange(3) == 1, torch::full({}, -3., torch::kDouble), p)));
  CHECK(norms.select(0, 1).item<double>() == Approx(p.select(0, 1).item<double>()));
}

TEST_CASE("norms of parts: gradients", "[ops][norm]") {
  const DeviceMesh mesh(World::local(3), {3}, {"tp"});
  Tensor plain = signed_numbers({5, 2}).requires_grad_();
  for (const Placement& from :
       {Placement(Shard(0)), Placement(Shard(1)), Placement(Replicate()), Placement(Partial())}) {
    Tensor x = distribute_tensor(plain.detach(), mesh, {from}).requires_grad_();
    const auto loss = [](const Tensor& t) {
      return torch::stack({t.norm(), t.slice(0, 2).norm()}).norm() * t.norm(2, {0}).prod();
    };
    plain.mutable_grad() = Tensor();
    loss(plain).backward();
    loss(x).backward();
    CHECK(torch::allclose(full_tensor(x.grad()), plain.grad(), 1e-10));
  }
}

TEST_CASE("norms of parts: clipping a model's gradients is one collective for any layouts", "[ops][norm]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  for (const double p : {2., 1., std::numeric_limits<double>::infinity()}) {
    std::vector<Tensor> plain, distributed;
    for (const char* from : {"RS(0)", "RR", "RS(1)", "R_S(0, 3)", "RS(0)"}) {
      const Tensor value = signed_numbers({6, 4}) + static_cast<double>(plain.size());
      plain.push_back(torch::zeros({6, 4}, torch::kDouble).requires_grad_());
      plain.back().mutable_grad() = value.clone();
      const Placements placements = parse_placements(from).value();
      distributed.push_back(distribute_tensor(plain.back().detach(), mesh, placements).requires_grad_());
      distributed.back().mutable_grad() = distribute_tensor(value, mesh, placements);
    }
    CommDebugMode comm;
    const double norm = torch::nn::utils::clip_grad_norm_(distributed, 2.5, p);
    CAPTURE(p, comm.to_string());
    CHECK(comm.total() == 1);
    CHECK(norm == Approx(torch::nn::utils::clip_grad_norm_(plain, 2.5, p)).epsilon(1e-12));
    for (size_t i = 0; i < plain.size(); ++i) CHECK(close(distributed[i].grad(), plain[i].grad()));
  }
}

TEST_CASE("norms of parts: a write that also reads the norm reduces it once", "[ops][norm][mutable_layouts]") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const Tensor plain = signed_numbers({5, 8}), x = distribute_tensor(plain, mesh, {Shard(1)});
  const auto one = [](const Tensor& n) { return std::vector<Tensor>{n}; };
  const std::vector<std::function<void(Tensor&)>> writes = {
      [](Tensor& n) { n.mul_(n); },
      [](Tensor& n) { n.addcmul_(n, n); },
      [&](Tensor& n) { torch::_foreach_mul_(one(n), one(n)); },
      [&](Tensor& n) { torch::_foreach_addcmul_(one(n), one(n), one(n)); },
      [](Tensor& n) { torch::_foreach_mul_(std::vector<Tensor>(2, n), std::vector<Tensor>(2, n)); },
  };
  for (const bool listened : {false, true}) {
    std::optional<CommDebugMode> comm;
    if (listened) comm.emplace();
    for (size_t w = 0; w < writes.size(); ++w) {
      for (int call = 0; call < 2; ++call) {
        CAPTURE(listened, w, call);
        Tensor norm = x.norm(2, {1}), expected = plain.norm(2, {1});
        REQUIRE(placements_of(norm) == Placements{Partial(kNorm2)});
        if (comm) comm->reset();
        writes[w](norm);
        if (comm) CHECK(comm->total() == 1);
        writes[w](expected);
        CHECK(close(norm, expected));
        writes[w](norm);  // in its new layout
        writes[w](expected);
        CHECK(close(norm, expected));
      }
    }
  }
}

}  // namespace
}  // namespace dtensor
