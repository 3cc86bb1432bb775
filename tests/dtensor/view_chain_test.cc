// Chains of views of a distributed tensor: their cost, and writes through the last one.
#include <c10/core/AutogradState.h>
#include <torch/autograd.h>

#include <algorithm>
#include <ctime>
#include <limits>

#include "tests/dtensor/view_pairs.h"

namespace dtensor::testing {
namespace {

// Removes rows from both ends by turns, so that the ranks' halves stay where they are.
Tensor sliced(Tensor t, int64_t times) {
  for (int64_t i = 0; i < times; ++i) t = i % 2 == 0 ? t.slice(0, 1) : t.slice(0, 0, -1);
  return t;
}

// Slices `t` once more `times` times, and returns the processor time that this took.
double seconds_to_slice(Tensor& t, int64_t times) {
  const std::clock_t begin = std::clock();
  t = sliced(std::move(t), times);
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

bool has_function(const Tensor& view) {
  return torch::autograd::impl::get_view_autograd_meta(view)->get_backward_view().has_view_fn();
}

// 19 times as long would mean that each view looks at all before it. Other processes run at the same time: the smallest
// of three chains' times counts.
TEST_CASE("view chain: the last thousand of ten thousand views take less than five times as long as the first") {
  for (const Placements& placements : {Placements{Shard(0)}, Placements{Replicate()}}) {
    for (const bool requires_grad : {false, true}) {
      const Tensor t = distribute_tensor(torch::ones({10001}), mesh_of(2), placements).set_requires_grad(requires_grad);
      double first = std::numeric_limits<double>::infinity(), last = first;
      for (int chain = 0; chain < 3; ++chain) {
        Tensor view = t;
        first = std::min(first, seconds_to_slice(view, 1000));
        view = sliced(view, 8000);
        last = std::min(last, seconds_to_slice(view, 1000));
      }
      INFO(to_string(placements) << (requires_grad ? ", requires grad: " : ": ") << first << " s, " << last << " s");
      CHECK(last < 5 * first);
    }
  }
}

TEST_CASE("view chain: autograd of a write through the last view equals that on one device") {
  for (const DeviceMesh& mesh : view_meshes()) {
    for (const Placements& placements : layouts(mesh, 1)) {
      const auto run = [&](const Tensor& leaf, const Tensor& factor) {
        const Tensor base = leaf * 2, before = sliced(base, 7), view = sliced(base, 40);
        view.mul_(factor);
        const Tensor after = sliced(base, 39);
        (base.square().sum() + before.sum() + after.exp().sum() + view.sin().sum()).backward();
        return std::vector<Tensor>{base.detach(), leaf.grad(), factor.grad()};
      };
      const Tensor values = numbers({43}) / 20, factor = torch::full({}, 1.5, torch::kDouble);
      const auto plain = run(values.clone().requires_grad_(), factor.clone().requires_grad_());
      const auto distributed =
          run(distribute_tensor(values, mesh, placements).requires_grad_(),
              distribute_tensor(factor, mesh, Placements(mesh.ndim(), Replicate())).requires_grad_());
      INFO(mesh.to_string() << " " << to_string(placements));
      for (size_t i = 0; i < plain.size(); ++i) CHECK(same(distributed[i], plain[i]));
    }
  }
}

TEST_CASE("view chain: thousands of views are written to and freed") {
  const Tensor leaf = distribute_tensor(torch::ones({20005}), mesh_of(2)).requires_grad_();
  Tensor base = leaf * 1;
  Tensor view = sliced(base, 20000);
  view.mul_(3);
  base.sum().backward();
  CHECK(full_tensor(leaf.grad()).sum().item<double>() == 20000 + 5 * 3);
}

TEST_CASE("view chain: plain views are unchanged, also next to distributed ones") {
  const Tensor distributed = distribute_tensor(torch::ones({6, 4}), mesh_of(2), {Shard(0)});
  CHECK(has_function(distributed.slice(0, 1)));
  CHECK(has_function(distributed.slice(1, 1)));
  CHECK(has_function(distributed.slice(1, 1).t()));
  CHECK(has_function(distributed.unbind(0)[3]));
  const Tensor plain = torch::ones({6, 4});
  CHECK_FALSE(c10::AutogradState::get_tls_state().get_view_replay_enabled());
  CHECK_FALSE(has_function(plain.slice(0, 1)));
  CHECK_FALSE(has_function(plain.slice(0, 1).t()));
}

// Views from split() and the like store which of the results they are.
TEST_CASE("view chain: one of several views is replayed as that one") {
  const Pair t = make({6, 4}, mesh_of(2), {Shard(0)});
  const auto view_again = [](const Tensor& x) {
    const Tensor view = x.split(2, 0)[2].unbind(1)[1];
    return torch::autograd::impl::get_view_autograd_meta(view)->get_backward_view().view_fn()(x);
  };
  CHECK(same(view_again(t.distributed), t.plain.split(2, 0)[2].unbind(1)[1]));
}

}  // namespace
}  // namespace dtensor::testing
