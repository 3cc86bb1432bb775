// One rank reads more than the others: what operators remember, views, lookups, hooks.
#include "tests/processes/reads_on_one_rank.h"

#include <torch/nn.h>
#include <torch/optim.h>

#include <vector>

#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/redistribute.h"
#include "dtensor/remembered_layouts.h"
#include "dtensor/scopes.h"

namespace dtensor::testing {
using namespace internal;

namespace {

std::vector<Tensor> reduced_sum(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = laid_out({8, 6}, 1, mesh, Shard(0));
  const Tensor z = x.t().mm(x);
  read(z);
  const Tensor a = z.relu();
  read(z);
  const Tensor b = z.exp();
  read(z);
  return {a, b, z.t().sin() + z.select(0, 1)};
}

std::vector<Tensor> equal_calls_in_a_loop(const DeviceMesh& mesh, const Read& read) {
  std::vector<Tensor> results;
  for (uint64_t step = 0; step < 6; ++step) {
    const Tensor s = from_local({numbers({4, 5}, step)}, mesh, {Shard(0)}).sum(0);
    results.push_back(s.sin());
    if (step == 2) read(s);
    results.push_back(s.sin() * 2);
  }
  return results;
}

std::vector<Tensor> gathered_weight(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({6, 6}, 3, mesh, Shard(0));
  Tensor x = laid_out({8, 6}, 4, mesh, Shard(0));
  for (int step = 0; step < 3; ++step) {
    x = x.mm(w).tanh();
    read(w);
  }
  x.square().sum().backward();
  read(w.grad());
  return {x, w.grad()};
}

std::vector<Tensor> views_of_a_sum(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = laid_out({8, 6}, 5, mesh, Shard(0));
  const Tensor z = x.t().mm(x);
  const Tensor column = z.select(1, 2), flat = z.view({-1});
  read(column);
  const Tensor a = column.exp();
  read(flat);
  return {a, flat.sin(), z.t().tanh()};
}

std::vector<Tensor> conjugates(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = torch::complex(laid_out({8, 8}, 6, mesh, Shard(0)), laid_out({8, 8}, 7, mesh, Shard(0))) / 8;
  const Tensor z = x.t().mm(x);
  const Tensor c = z.conj();
  read(c);
  const Tensor a = z.exp();
  read(z);
  const Tensor gathered = x.conj().matrix_exp();
  read(x);
  return {a, c.sin(), gathered, x.matrix_exp(), torch::imag(c)};
}

std::vector<Tensor> stencil_in_place(const DeviceMesh& mesh, const Read& read, int64_t ghost_rows) {
  const Tensor u = laid_out({16, 6}, 8, mesh, Shard(0)) * 1;
  set_ghost_width(u, {ghost_rows, 0});
  for (int round = 0; round < 3; ++round) {
    const Tensor up = u.slice(0, 0, 14), down = u.slice(0, 2, 16);
    read(up);
    const Tensor mean = (up + down) / 2;
    read(u);
    u.slice(0, 1, 15).copy_(mean);
    read(down);
  }
  return {u};
}

std::vector<Tensor> padded_windows(const DeviceMesh& mesh, const Read& read, int64_t ghost_rows) {
  const Tensor u = laid_out({12, 4}, 9, mesh, Shard(0)) * 1;
  set_ghost_width(u, {ghost_rows, 0});
  const Tensor padded = torch::constant_pad_nd(u, {0, 0, 1, 1});
  read(padded);
  const Tensor a = padded.slice(0, 0, 12) + padded.slice(0, 2, 14);
  read(padded);
  return {a, padded * 2, u};
}

std::vector<Tensor> operators_of_one_ghost_region(const DeviceMesh& mesh, const Read& read) {
  const Tensor u = laid_out({2, 3, 12, 6}, 14, mesh, Shard(2)) * 1;
  set_ghost_width(u, {0, 0, 1, 0});
  Tensor sum;
  for (int round = 0; round < 2; ++round) {
    const Tensor pooled = torch::max_pool2d(u, 3, 1, 1);
    read(u);
    const Tensor rolled = u.roll(1, 2) + torch::avg_pool2d(u, 3, 1, 1);
    read(rolled);
    const Tensor padded = torch::reflection_pad2d(u, {1, 1, 1, 1});
    read(padded);
    sum = pooled + rolled + padded.slice(2, 0, 12).slice(3, 2, 8);
    read(u);
    u.add_(sum);
  }
  return {u, sum};
}

std::vector<Tensor> rolled_both_ways(const DeviceMesh& mesh, const Read& read) {
  const Tensor u = laid_out({12, 4}, 10, mesh, Shard(0)) * 1;
  const Tensor forward = u.roll({1}, {0});
  read(u);
  return {forward, u.roll({-1}, {0})};
}

std::vector<Tensor> view_of_a_tensor_that_is_written(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = laid_out({12, 4}, 11, mesh, Shard(0)) * 1;
  const Tensor middle = x.slice(0, 3, 9), turned = middle.t();
  const Tensor before = middle * 2;
  read(middle);
  x.mul_(3);
  read(middle);
  read(turned);
  const Tensor after = turned + 1;
  middle.add_(1);
  read(x);
  return {before, after, x};
}

std::vector<Tensor> results_written_one_by_one(const DeviceMesh& mesh, const Read& read) {
  MeshScope scope(mesh);
  const Tensor w = laid_out({6, 8}, 12, mesh, Shard(1));
  const Tensor x = distribute_tensor(numbers({5, 6}, 13), mesh, {Replicate()});
  const Tensor results = torch::zeros({4, 5, 8}, torch::kDouble);
  read(results);
  relayout_(results, {Shard(2)});
  for (int64_t step = 0; step < 4; ++step) {
    results.select(0, step).copy_(x.mm(w) * static_cast<double>(step));
    read(results);
  }
  return {results, results.sum(0)};
}

std::vector<Tensor> temporary_laid_out_anew(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = distribute_tensor(numbers({8, 6}, 14), mesh, {Replicate()});
  const Tensor sharded = laid_out({8, 6}, 15, mesh, Shard(0));
  Tensor y = x * 2;
  read(y);
  y.add_(sharded);
  read(y);
  return {y, y.exp().sum(0)};
}

std::vector<Tensor> lookups(const DeviceMesh& mesh, const Read& read) {
  const Tensor first = parameter({10, 4}, 16, mesh, Shard(0)), second = parameter({12, 4}, 17, mesh, Shard(0));
  const Tensor ids = distribute_tensor(torch::arange(8), mesh, {Shard(0)});
  const Tensor rows = torch::embedding(first, ids) * torch::embedding(second, ids);
  read(rows);
  read(ids);
  rows.square().sum().backward();
  read(first.grad());
  first.mutable_grad().mul_(2);
  return {first.grad(), second.grad(), rows};
}

std::vector<Tensor> loss_of_rows(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({6, 12}, 18, mesh, Shard(1));
  const Tensor x = distribute_tensor(numbers({8, 6}, 19), mesh, {Replicate()});
  const Tensor scores = x.mm(w);
  read(scores);
  const Tensor target = distribute_tensor(torch::arange(8), mesh, {Replicate()});
  const Tensor loss = torch::nll_loss(torch::log_softmax(scores, 1), target);
  read(loss);
  loss.backward();
  return {loss, w.grad()};
}

std::vector<Tensor> convolution_of_rows(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = parameter({2, 3, 16, 5}, 20, mesh, Shard(2));
  const Tensor w = parameter({4, 3, 3, 3}, 21, mesh, Replicate());
  const Tensor y = torch::conv2d(x, w, {}, 1, 1);
  read(x);
  read(y);
  y.square().sum().backward();
  read(x.grad());
  return {y, x.grad(), w.grad()};
}

std::vector<Tensor> hooks_on_gradients(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({6, 5}, 22, mesh, Replicate()), b = parameter({5}, 23, mesh, Replicate());
  const Tensor x = laid_out({8, 6}, 24, mesh, Shard(0));
  const Tensor product = x.mm(w);
  product.register_hook([&](const Tensor& g) { read(g); });
  const Tensor y = (product + b).tanh();
  y.square().sum().backward();
  read(w.grad());
  return {w.grad(), b.grad()};
}

std::vector<Tensor> two_steps_of_training(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({6, 6}, 25, mesh, Shard(0)), v = parameter({6, 6}, 26, mesh, Shard(1));
  torch::optim::SGD optimizer({w, v}, 0.1);
  const Tensor x = laid_out({8, 6}, 27, mesh, Shard(0));
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const Tensor y = x.mm(w).relu().mm(v);
    read(y);
    y.square().sum().backward();
    read(v.grad());
    optimizer.step();
    read(w);
  }
  return {w, v};
}

// So little is remembered that it matters which goes first.
std::vector<Tensor> little_is_remembered(const DeviceMesh& mesh, const Read& read) {
  limit_remembered_bytes(mesh.world(), 2 * 8 * 8 * 8);
  std::vector<Tensor> results;
  const Tensor kept = laid_out({8, 8}, 28, mesh, Shard(0)) / 8;
  for (uint64_t step = 0; step < 5; ++step) {
    const Tensor t = laid_out({8, 8}, 29 + step, mesh, Shard(0)) / 8;
    results.push_back(t.matrix_exp());
    read(t);
    if (step % 2 == 0) results.push_back(kept.matrix_exp());
    results.push_back(t.t().matrix_exp());
  }
  limit_remembered_bytes(mesh.world(), kDefaultRememberedBytes);
  return results;
}

std::vector<Tensor> moments_by_hand(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = laid_out({8, 12}, 35, mesh, Shard(1));
  const Tensor w = parameter({12, 6}, 36, mesh, Shard(0));
  const Tensor h = x.mm(w);
  read(h);
  const Tensor mean = h.mean(-1, true);
  read(mean);
  const Tensor var = h.var(-1, false, true);
  const Tensor y = (h - mean) / (var + 1e-5).sqrt();
  read(h);
  y.pow(3).sum().backward();
  return {y, w.grad()};
}

std::vector<Program> programs() {
  return {
      {"a sum that is reduced once", reduced_sum},
      {"equal calls in a loop", equal_calls_in_a_loop},
      {"a weight that is gathered once", gathered_weight},
      {"views of a sum", views_of_a_sum},
      {"conjugates", conjugates},
      {"a stencil in place", [](auto& mesh, auto& read) { return stencil_in_place(mesh, read, 0); }},
      {"a stencil in place, with a ghost width",
       [](auto& mesh, auto& read) { return stencil_in_place(mesh, read, 1); }},
      {"windows of a padded tensor", [](auto& mesh, auto& read) { return padded_windows(mesh, read, 0); }},
      {"windows of a padded tensor, with a ghost width",
       [](auto& mesh, auto& read) { return padded_windows(mesh, read, 1); }},
      {"operators that share a ghost region", operators_of_one_ghost_region},
      {"rolls both ways", rolled_both_ways},
      {"a view of a tensor that is written to", view_of_a_tensor_that_is_written},
      {"results written one by one", results_written_one_by_one},
      {"a temporary that takes another layout in place", temporary_laid_out_anew},
      {"gradients of lookups", lookups},
      {"a loss of rows", loss_of_rows},
      {"a convolution of rows", convolution_of_rows},
      {"hooks on gradients", hooks_on_gradients},
      {"two steps of training", two_steps_of_training},
      {"little is remembered", little_is_remembered},
      {"moments by hand", moments_by_hand},
  };
}

TEST_CASE("reads on one rank change neither communication nor values", "[processes][reads]") {
  check_reads(programs());
}

}  // namespace
}  // namespace dtensor::testing
