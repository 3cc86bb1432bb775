#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;
using Tensors = std::vector<at::Tensor>;

TEST_CASE("softmax matches ATen along every dim and in every layout") {
  for (int64_t dim : {0, 1, -1}) {
    OpCase softmax{"softmax", [=](auto& t) { return Tensors{at::softmax(t[0], dim)}; }, {{5, 3, 2}}};
    softmax.silent = [=](const std::vector<Placement>& p) {
      return !p[0].is_sharded_on((dim + 3) % 3) && !p[0].is_partial();
    };
    check_op(softmax);
    OpCase log_softmax = softmax;
    log_softmax.name = "log_softmax";
    log_softmax.fn = [=](auto& t) { return Tensors{at::log_softmax(t[0], dim)}; };
    check_op(log_softmax);
    OpCase safe = softmax;
    safe.name = "_safe_softmax";
    safe.fn = [=](auto& t) { return Tensors{at::_safe_softmax(t[0], dim)}; };
    safe.make = [](size_t, const std::vector<int64_t>& shape) {
      at::Tensor t = at::rand(shape, at::kDouble);
      t.select(2, 0).select(1, 0).fill_(-std::numeric_limits<double>::infinity());  // empty rows along dims 0 and 2
      t.select(0, 1).fill_(-std::numeric_limits<double>::infinity());
      return t;
    };
    safe.partial_inputs = false;  // addends of -inf
    check_op(safe);
  }
  for (const bool log : {false, true}) {  // summaries are fewer bytes than the elements
    OpCase split{log ? "log_softmax of long rows" : "softmax of long rows",
                 [=](auto& t) { return Tensors{log ? at::log_softmax(t[0], 1) : at::softmax(t[0], 1)}; },
                 {{3, 26}}};
    split.strided_inputs = true;
    check_op(split, /*max_2d=*/40);
  }
  check_op({"softmax of a number", [](auto& t) { return Tensors{at::softmax(t[0], 0)}; }, {{}}});
  check_op({"softmax of nothing", [](auto& t) { return Tensors{at::softmax(t[0], 1)}; }, {{0, 3}}});
  check_op({"softmax in float",
            [](auto& t) { return Tensors{at::softmax(t[0], 1, at::kFloat)}; },
            {{5, 3}},
            {},
            {},
            true,
            1e-5});
}

TEST_CASE("class-sharded logits do not move: the ranks exchange a maximum and a sum per row in one call") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto logits = at::rand({64, 4096}, at::kDouble);
  const auto sharded = lay_out(logits, mesh, {Shard(1)});
  for (const bool log : {false, true}) {
    const auto f = [&](const at::Tensor& t) { return log ? at::log_softmax(t, 1) : at::softmax(t, 1); };
    CommDebugMode comm;
    const auto out = f(sharded);
    CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_gather", 1}});
    CHECK(comm.bytes() == 3 * 64 * (8 + 8));
    CHECK(meta_for_read(out).spec->placements() == Placements{Shard(1)});
    CHECK(difference(out, f(logits)).value_or("") == "");
  }
}

TEST_CASE("softmax along a dim split by two mesh dims, or by one of two, is one call") {
  const DeviceMesh mesh(World::local(6), {2, 3}, {"dp", "tp"});
  const auto x = at::rand({7, 40}, at::kDouble);
  for (const Placements& placements :
       {Placements{Shard(1), Shard(1)}, Placements{Replicate(), Shard(1)}, Placements{Shard(1), Replicate()},
        Placements{Shard(0), Shard(1)}, Placements{Shard(1), Shard(0)}, Placements{StridedShard(1, 3), Shard(1)}}) {
    CAPTURE(to_string(placements));
    CommDebugMode comm;
    const auto out = at::log_softmax(lay_out(x, mesh, placements), 1);
    CHECK(comm.total() == 1);
    CHECK(meta_for_read(out).spec->placements() == placements);
    CHECK(difference(out, at::log_softmax(x, 1)).value_or("") == "");
  }
}

TEST_CASE("softmax of rows too short for summaries moves the elements") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto x = at::rand({5, 8}, at::kDouble);
  CommDebugMode comm;
  const auto out = at::softmax(lay_out(x, mesh, {Shard(1)}), 1);
  CHECK(comm.total() == 1);
  CHECK(comm.bytes() <= 5 * 6 * 8);
  CHECK(difference(out, at::softmax(x, 1)).value_or("") == "");
}

TEST_CASE("softmax of split rows with infinities and nan matches ATen") {
  const DeviceMesh& mesh = test_meshes()[0];
  at::Tensor x = at::rand({7, 40}, at::kDouble);
  x[0].slice(0, 0, 20).fill_(-kInf);  // all elements of the first two ranks
  x[1].fill_(-kInf);
  x[2][35] = kInf;
  x[3][11] = std::numeric_limits<double>::quiet_NaN();
  x[4].fill_(-kInf)[39] = 1;
  x[5].fill_(1e300);
  x[6].slice(0, 10, 20).fill_(-1e300);
  for (const bool log : {false, true}) {
    const auto f = [&](const at::Tensor& t) { return log ? at::log_softmax(t, 1) : at::softmax(t, 1); };
    const auto out = full_tensor(f(lay_out(x, mesh, {Shard(1)})));
    CHECK(at::allclose(out, f(x), 1e-12, 1e-12, /*equal_nan=*/true));
  }
}

TEST_CASE("softmax of split rows of half types is computed in float") {
  const DeviceMesh& mesh = test_meshes()[0];
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto x = (8 * at::randn({3, 64})).to(dtype);
    const auto out = at::softmax(lay_out(x, mesh, {Shard(1)}), 1);
    CHECK(out.scalar_type() == dtype);
    CHECK(at::allclose(full_tensor(out).to(at::kFloat), at::softmax(x.to(at::kFloat), 1), 1e-2, 1e-3));
  }
}

TEST_CASE("if the dim must be whole, scores move to other dims by all-to-all instead of a gather") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto logits = at::rand({64, 4096}, at::kDouble);
  const auto sharded = lay_out(logits, mesh, {Shard(1)});
  CommDebugMode comm;
  const auto out = at::_safe_softmax(sharded, 1);
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_to_all", 1}});
  CHECK(difference(out, at::_safe_softmax(logits, 1)).value_or("") == "");
}
