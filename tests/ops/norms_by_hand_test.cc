// Normalisations written by hand behind a row-parallel layer: whatever the order of the statements, the same values and
// the same communication, forward and backward.
#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/sqrt.h>

#include <map>
#include <string>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

constexpr double kEps = 1e-5;

// Statements by letter: m, the mean; v, the variance; q, the variance from the differences; d, the differences; s, the
// root; y, the quotient.
at::Tensor normalized(const at::Tensor& x, const std::string& statements) {
  std::map<char, at::Tensor> t;
  for (const char statement : statements) {
    if (statement == 'm') t['m'] = x.mean(-1, /*keepdim=*/true);
    if (statement == 'v') t['v'] = x.var(at::IntArrayRef{-1}, /*unbiased=*/false, /*keepdim=*/true);
    if (statement == 'q') t['v'] = (t['d'] * t['d']).mean(-1, /*keepdim=*/true);
    if (statement == 'd') t['d'] = x - t['m'];
    if (statement == 's') t['s'] = (t['v'] + kEps).sqrt();
    if (statement == 'y') t['y'] = t['d'] / t['s'];
  }
  return t['y'];
}

struct Calls {
  int64_t forward = 0, backward = 0;
};

// Of a product with a matrix that is split by rows, normalised.
template <typename Norm>
Calls calls_of(const at::Tensor& a, const at::Tensor& b, const at::Tensor& expected, const Norm& norm) {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto input = distribute_tensor(a, mesh, {Shard(2)}), weight = distribute_tensor(b, mesh, {Shard(0)});
  weight.requires_grad_();
  Calls calls;
  CommDebugMode comm;
  const at::Tensor y = norm(at::matmul(input, weight));
  const at::Tensor loss = y.square().sum();
  calls.forward = comm.total();
  loss.backward();
  calls.backward = comm.total() - calls.forward;
  CHECK(difference(y.detach(), expected) == std::nullopt);
  return calls;
}

}  // namespace

TEST_CASE("a layer norm by hand, its statements in any order, communicates what layer_norm does", "[ops][norms]") {
  for (const int64_t width : {6, 256}) {
    const at::Tensor a = at::rand({8, 16, 8}, at::kDouble), b = at::rand({8, width}, at::kDouble);
    const at::Tensor expected = at::layer_norm(a.matmul(b), {width}, {}, {}, kEps);
    const Calls known =
        calls_of(a, b, expected, [&](const at::Tensor& x) { return at::layer_norm(x, {width}, {}, {}, kEps); });
    for (const char* statements : {"mvdsy", "vmdsy", "mdvsy", "vsmdy", "mdqsy"}) {
      CAPTURE(width, statements);
      const Calls calls = calls_of(a, b, expected, [&](const at::Tensor& x) { return normalized(x, statements); });
      CHECK(calls.forward == known.forward);
      CHECK(calls.backward == known.backward);
    }
  }
}

TEST_CASE("a mean that drops its dim, or of all dims, of a sum stays a sum", "[ops][norms]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto x = lay_out(at::rand({6, 5}, at::kDouble), mesh, {Partial()});
  CommDebugMode comm;
  CHECK(to_string(DTensor(x.mean(-1)).placements()) == "P(sum)");
  CHECK(to_string(DTensor(x.mean()).placements()) == "P(sum)");
  CHECK(to_string(DTensor(x.mean(0, /*keepdim=*/true)).placements()) == "P(sum)");
  CHECK(comm.total() == 0);
  CHECK(to_string(DTensor(x.mean(-1, /*keepdim=*/true)).placements()) == "R");
  CHECK(comm.total() == 1);
}

}  // namespace dtensor::testing
