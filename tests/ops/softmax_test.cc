#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/softmax.h>

#include <limits>

#include "dtensor/extend/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

using namespace dtensor;
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
      t.select(2, 0).select(1, 0).fill_(
          -std::numeric_limits<double>::infinity());  // rows of nothing along dims 0 and 2
      t.select(0, 1).fill_(-std::numeric_limits<double>::infinity());
      return t;
    };
    safe.partial_inputs = false;  // addends of -inf
    check_op(safe);
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

TEST_CASE("class-sharded logits stay where they are: the ranks exchange a maximum and a sum per row") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto logits = at::rand({64, 4096}, at::kDouble);
  const auto sharded = lay_out(logits, mesh, {Shard(1)});
  CommDebugMode comm;
  const auto out = at::log_softmax(sharded, 1);
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_reduce", 2}});
  CHECK(comm.bytes() == 2 * (2 * 64 * 8 * 3 / 4));
  CHECK(meta_of(out).spec->placements() == Placements{Shard(1)});
  CHECK(difference(out, at::log_softmax(logits, 1)).value_or("") == "");
}

TEST_CASE("where the dim must be whole, scores go to other dims by all-to-all, not to every rank") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto logits = at::rand({64, 4096}, at::kDouble);
  const auto sharded = lay_out(logits, mesh, {Shard(1)});
  CommDebugMode comm;
  const auto out = at::_safe_softmax(sharded, 1);
  CHECK(comm.counts() == std::map<std::string, int64_t>{{"all_to_all", 1}});
  CHECK(difference(out, at::_safe_softmax(logits, 1)).value_or("") == "");
}
