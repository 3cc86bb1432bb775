// LossParallel: scores that are sharded by class never move, and the losses are those of one device.
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dtensor/dtensor.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

namespace F = torch::nn::functional;
using testing::error_text;
using torch::Tensor;

// Rows over dp, classes over tp; with 5 classes uneven parts, with 2 an empty one.
struct Case {
  DeviceMesh mesh;
  int64_t classes;
};

std::vector<Case> cases() {
  const DeviceMesh three(World::local(3), {3}, {"tp"}), four(World::local(4), {2, 2}, {"dp", "tp"});
  return {{three, 5}, {three, 2}, {four, 5}, {four, 64}};
}

Placements rows_layout(const DeviceMesh& mesh) {
  return mesh.ndim() == 1 ? Placements{Replicate()} : Placements{Shard(0), Replicate()};
}
Placements scores_layout(const DeviceMesh& mesh) {
  return mesh.ndim() == 1 ? Placements{Shard(1)} : Placements{Shard(0), Shard(1)};
}

Tensor scores_of(c10::IntArrayRef sizes) {
  return torch::arange(c10::multiply_integers(sizes), torch::kDouble).mul(0.7).sin().mul(3).view(sizes);
}

// Whether some tensor of that shape was redistributed.
bool moves(const CommDebugMode& comm, const Tensor& like) {
  for (const CommEvent& e : comm.events()) {
    if (e.layout_change && like.sizes() == c10::IntArrayRef(e.layout_change->sizes())) return true;
  }
  return false;
}

// Of scores, targets and a weight per class.
using Loss = std::function<Tensor(const Tensor&, const Tensor&, const Tensor&)>;

void check_like_plain(const Loss& loss, const Case& c, c10::IntArrayRef inner, bool probabilities) {
  std::vector<int64_t> sizes{7, c.classes}, rows{7};
  for (const int64_t n : inner) sizes.push_back(n), rows.push_back(n);
  const Tensor plain = scores_of(sizes).requires_grad_(), weight = torch::linspace(0.5, 2, c.classes, torch::kDouble);
  Tensor target = torch::arange(c10::multiply_integers(rows)).view(rows) * 3 % c.classes;
  target.view(-1)[2] = -100;
  if (probabilities) target = scores_of(sizes).softmax(1);
  const Tensor expected = loss(plain, target, weight);
  expected.sum().backward();

  const Tensor scores = distribute_tensor(plain.detach(), c.mesh, scores_layout(c.mesh)).requires_grad_();
  const Tensor targets = distribute_tensor(target, c.mesh, probabilities ? scores_layout(c.mesh) : rows_layout(c.mesh));
  const Tensor weights = distribute_tensor(weight, c.mesh);
  CommDebugMode comm;
  const LossParallel scope;
  const Tensor result = loss(scores, targets, weights);
  result.sum().backward();
  CHECK(!moves(comm, plain));
  CHECK(torch::allclose(full_tensor(result), expected));
  CHECK(torch::allclose(full_tensor(scores.grad()), plain.grad()));
}

}  // namespace

TEST_CASE("LossParallel: losses and gradients of scores that are sharded by class are exact, and no scores move") {
  const auto cross_entropy = [](F::CrossEntropyFuncOptions options, bool weighted) -> Loss {
    return [=](const Tensor& scores, const Tensor& target, const Tensor& weight) {
      auto of = options;
      return F::cross_entropy(scores, target, weighted ? of.weight(weight) : of);
    };
  };
  const Loss log_likelihood = [](const Tensor& scores, const Tensor& target, const Tensor&) {
    return torch::nll_loss_nd(torch::log_softmax(scores, 1), target);
  };
  for (const Case& c : cases()) {
    CAPTURE(c.mesh.to_string(), c.classes);
    for (const bool is_image : {false, true}) {
      CAPTURE(is_image);
      const std::vector<int64_t> inner = is_image ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{};
      const auto check = [&](const Loss& loss) { check_like_plain(loss, c, inner, /*probabilities=*/false); };
      check(cross_entropy({}, false));
      check(cross_entropy(F::CrossEntropyFuncOptions().reduction(torch::kSum), true));
      check(cross_entropy(F::CrossEntropyFuncOptions().reduction(torch::kNone), false));
      check(cross_entropy(F::CrossEntropyFuncOptions().label_smoothing(0.1), true));
      check(log_likelihood);
      check_like_plain(cross_entropy({}, false), c, inner, /*probabilities=*/true);
    }
  }
}

TEST_CASE("LossParallel: scores of one row, without rows") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor plain = scores_of({3}), target = torch::tensor(1);
  const Tensor scores = distribute_tensor(plain, mesh, {Shard(0)}).requires_grad_();
  const LossParallel scope;
  CommDebugMode comm;
  const Tensor loss = F::cross_entropy(scores, distribute_tensor(target, mesh));
  const Tensor logs = torch::log_softmax(scores, 0);
  loss.backward();
  CHECK(!moves(comm, plain));
  CHECK(torch::allclose(full_tensor(loss), F::cross_entropy(plain, target)));
  CHECK(torch::allclose(full_tensor(logs), torch::log_softmax(plain, 0)));
}

TEST_CASE("LossParallel: outside of it short rows of scores are moved, inside they are not, and the scope ends") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const auto moves_short_rows = [&] {
    const Tensor scores = distribute_tensor(scores_of({6, 4}), mesh, {Shard(1)}).requires_grad_();
    CommDebugMode comm;
    const Tensor logs = torch::log_softmax(scores, 1);
    return moves(comm, scores);
  };
  CHECK(moves_short_rows());
  {
    const LossParallel scope;
    CHECK(!moves_short_rows());
  }
  CHECK(moves_short_rows());
}

TEST_CASE("LossParallel: scores that would have to move are an error before anything is sent, also in backward") {
  using Catch::Contains;
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const auto logs = [&] {
    const Tensor t = scores_of({6, 8}).log_softmax(1);
    return distribute_tensor(t, mesh, {StridedShard(1, 2), Shard(1)}).requires_grad_();
  };
  const Tensor target = distribute_tensor(torch::arange(6), mesh), in = logs(), later = logs();
  CommDebugMode comm;
  {
    const LossParallel scope;
    const ModulePath path("loss");
    CHECK_THAT(error_text([&] { torch::nll_loss(in, target); }),
               Contains("aten::nll_loss_forward: argument 'self' would leave its shards of classes, 384 bytes") &&
                   Contains("f64[6, 8]") && Contains("in module 'loss'") && Contains("LossParallel") &&
                   !Contains("in backward"));
  }
  CHECK(comm.total() == 0);
  const Tensor loss = torch::nll_loss(later, target);  // moves them, by price
  CHECK(comm.total() > 0);
  const LossParallel scope;
  CHECK_THAT(error_text([&] { loss.backward(); }),
             Contains("aten::nll_loss_backward: argument 'self'") && Contains("in backward"));
}

TEST_CASE("LossParallel: targets that are sharded over the mesh dim of the classes come to the scores") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor plain = scores_of({6, 4}), target = torch::arange(6) % 4;
  for (const bool is_fused : {false, true}) {
    CAPTURE(is_fused);
    const Tensor scores = distribute_tensor(plain, mesh, {Shard(1)}).requires_grad_();
    const Tensor targets = distribute_tensor(target, mesh, {Shard(0)});
    const LossParallel scope;
    CommDebugMode comm;
    const Tensor loss =
        is_fused ? F::cross_entropy(scores, targets) : torch::nll_loss(torch::log_softmax(scores, 1), targets);
    loss.backward();
    CHECK(!moves(comm, plain));
    CHECK(torch::allclose(full_tensor(loss), F::cross_entropy(plain, target)));
  }
}

TEST_CASE("LossParallel: second derivatives of short rows move no scores") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const auto add_penalty = [](const Tensor& scores, const Tensor& target) {
    const Tensor loss = F::cross_entropy(scores, target);
    const Tensor gradient = torch::autograd::grad({loss}, {scores}, {}, std::nullopt, /*create_graph=*/true)[0];
    gradient.square().sum().backward();
  };
  const Tensor plain = scores_of({6, 4}).requires_grad_(), target = torch::arange(6) % 4;
  add_penalty(plain, target);
  const Tensor scores = distribute_tensor(plain.detach(), mesh, {Shard(1)}).requires_grad_();
  const Tensor targets = distribute_tensor(target, mesh);
  const LossParallel scope;
  CommDebugMode comm;
  add_penalty(scores, targets);
  CHECK(!moves(comm, plain));
  CHECK(torch::allclose(full_tensor(scores.grad()), plain.grad()));
}

TEST_CASE("LossParallel: a gradient of log_softmax() that would move the scores is an error before anything is sent") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const auto logs = [&] {
    return torch::log_softmax(distribute_tensor(scores_of({6, 4}), mesh, {Shard(1)}).requires_grad_(), 1);
  };
  const Tensor plain = scores_of({6, 4});
  const LossParallel scope;
  for (const Placement& fitting : {Placement(Replicate()), Placement(Shard(1))}) {
    const Tensor gradient = distribute_tensor(plain, mesh, {fitting}), result = logs();
    CommDebugMode comm;
    result.backward(gradient);
    CHECK(!moves(comm, plain));
  }
  const Tensor by_rows = distribute_tensor(plain, mesh, {Shard(0)}), result = logs();
  CommDebugMode comm;
  CHECK_THAT(error_text([&] { result.backward(by_rows); }),
             Catch::Contains("aten::_log_softmax_backward_data: argument 'output' would leave its shards of classes") &&
                 Catch::Contains("in backward"));
  CHECK(comm.total() == 0);
}

TEST_CASE(
    "LossParallel: probabilities of pixels that are sharded over the mesh dim of the classes come to the scores") {
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  const Tensor plain = scores_of({6, 4, 3}).requires_grad_(), target = scores_of({6, 4, 3}).cos().softmax(1);
  const Tensor expected = F::cross_entropy(plain, target);
  expected.backward();
  const Tensor scores = distribute_tensor(plain.detach(), mesh, {Shard(1)}).requires_grad_();
  const Tensor targets = distribute_tensor(target, mesh, {Shard(0)});
  const LossParallel scope;
  CommDebugMode comm;
  const Tensor loss = F::cross_entropy(scores, targets);
  loss.backward();
  int64_t moved = 0;
  for (const CommEvent& e : comm.events()) {
    if (!e.layout_change || plain.sizes() != c10::IntArrayRef(e.layout_change->sizes())) continue;
    CHECK(e.cause.argument == "target");
    ++moved;
  }
  CHECK(moved == 1);
  CHECK(torch::allclose(full_tensor(loss), expected));
  CHECK(torch::allclose(full_tensor(scores.grad()), plain.grad()));
}

TEST_CASE("LossParallel: softmax of others, and scores whose rows are sharded, follow the price") {
  const DeviceMesh mesh(World::local(4), {4}, {"tp"});
  const LossParallel scope;
  const Tensor plain = scores_of({6, 4}), target = torch::arange(6) % 4;
  CommDebugMode comm;
  const Tensor weights = torch::softmax(distribute_tensor(plain, mesh, {Shard(1)}), 1);
  CHECK(moves(comm, plain));
  CHECK(torch::allclose(full_tensor(weights), plain.softmax(1)));
  const Tensor loss = F::cross_entropy(distribute_tensor(plain, mesh, {Shard(0)}), distribute_tensor(target, mesh));
  CHECK(torch::allclose(full_tensor(loss), F::cross_entropy(plain, target)));
}

}  // namespace dtensor
