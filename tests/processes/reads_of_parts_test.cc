// One rank reads more than the others: results that are arriving, parts in strides of the user's, packed sequences,
// lazy slices, lists of tensors.
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_pack_padded_sequence.h>
#include <ATen/ops/_pad_packed_sequence.h>
#include <torch/nn.h>

#include <vector>

#include "dtensor/factories.h"
#include "dtensor/ghost_width.h"
#include "dtensor/layout_cache/remembered_bytes.h"
#include "dtensor/remembered_layouts.h"
#include "tests/processes/reads_on_one_rank.h"

namespace dtensor::testing {
using namespace internal;

namespace {

// ------------------------------------------------------------ results that are arriving

std::vector<Tensor> arriving_results(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({8, 8}, 100, mesh, Shard(0));
  const Tensor whole = redistribute(w, {Replicate()}, {.async_op = true});
  read(whole);
  const Tensor x = laid_out({8, 8}, 101, mesh, Shard(0));
  const Tensor sum = redistribute(x.t().mm(x), {Shard(1)}, {.async_op = true});
  const Tensor turned = sum.t();
  read(turned);
  const Tensor moved = redistribute(x, {Shard(1)}, {.async_op = true});
  read(sum);
  const Tensor y = x.mm(whole);
  whole.register_hook([&](const Tensor& g) { read(g); });
  y.square().sum().backward();
  read(w.grad());
  const Tensor dropped = redistribute(x, {Replicate()}, {.async_op = true});
  read(dropped);
  const Tensor written = redistribute(x, {Replicate()}, {.async_op = true});
  read(written);
  written.mul_(2).add_(moved);
  return {y.detach(), w.grad(), sum, turned.exp(), moved, written};
}

// The result is laid out as a transposed tensor: parts of one row are viewed, others would be copied.
std::vector<Tensor> arriving_sum_with_other_strides(const DeviceMesh& mesh, const Read& read) {
  const int64_t rows = 2 * mesh.size() - 1;
  const Tensor sums = laid_out({8, rows, 3, 3 * rows}, 102, mesh, Shard(0)).sum(0) / 64;
  const Tensor y = redistribute(sums.permute({0, 2, 1}), {Shard(0)}, {.async_op = true});
  const Tensor v = y.permute({0, 2, 1}).view({3 * rows, 3 * rows});
  read(v);
  const Tensor a = v.matrix_exp();
  read(y);
  const Tensor b = y.permute({0, 2, 1}).matmul(v.t());
  const Tensor again = v.matrix_exp();
  v.mul_(2);
  read(y);
  y.mul_(2);
  read(v);
  return {a, b, again, y, v.matrix_exp()};
}

// ------------------------------------------------------------ parts in strides of the user's

// Parts whose last rank has one row, so that strides of this dim matter on the others only.
Tensor from_turned_parts(const DeviceMesh& mesh, uint64_t seed) {
  const int64_t rows = 2 * mesh.size() - 1, own = own_rank() == mesh.size() - 1 ? 1 : 2;
  const Tensor part = numbers({3 * rows, 3, own}, seed + own_rank()).permute({2, 1, 0}) / 64;
  return from_local({part}, mesh, {Shard(0)}, {.shape = std::vector<int64_t>{rows, 3, 3 * rows}});
}

std::vector<Tensor> views_of_turned_parts(const DeviceMesh& mesh, const Read& read) {
  limit_remembered_bytes(mesh.world(), 3 * 21 * 21 * 8);
  const Tensor x = from_turned_parts(mesh, 110), other = laid_out({21, 21}, 111, mesh, Shard(0)) / 64;
  const Tensor v = x.view({x.size(0) * 3, x.size(2)});
  std::vector<Tensor> results{other.matrix_exp()};
  for (int step = 0; step < 3; ++step) {
    read(v);
    results.push_back(v.matrix_exp());
    results.push_back(v.matrix_exp() + v.t().matrix_exp());
    x.mul_(1.5);
    read(v);
    results.push_back(laid_out({21, 21}, 112 + step, mesh, Shard(0)).div(64).matrix_exp());
    results.push_back(other.matrix_exp());
    v.add_(0.01);
    read(x);
    v.slice(0, 1, 20).mul_(0.5);
    v.slice(1, 1, 20).copy_(other.slice(1, 0, 19));
  }
  results.push_back(x);
  results.push_back(v);
  limit_remembered_bytes(mesh.world(), kDefaultRememberedBytes);
  return results;
}

std::vector<Tensor> gradients_in_turned_parts(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({21, 21}, 120, mesh, Shard(0));
  const Tensor x = from_turned_parts(mesh, 121);
  w.mutable_grad() = x.view({21, 21});
  read(w.grad());
  const Tensor batch = laid_out({8, 21}, 122, mesh, Shard(0));
  batch.mm(w).square().sum().backward();
  read(w.grad());
  read(x);
  return {w.grad()};
}

std::vector<Tensor> gradients_given_in_turned_parts(const DeviceMesh& mesh, const Read& read) {
  const Tensor w = parameter({21, 21}, 150, mesh, Shard(0));
  w.register_hook([&](const Tensor& g) { read(g); });
  w.view({7, 3, 21}).backward(from_turned_parts(mesh, 151));
  std::vector<Tensor> results;
  for (int i = 0; i < 2; ++i) {
    results.push_back(w.grad().matrix_exp());
    read(w.grad());
  }
  return results;
}

std::vector<Tensor> stencil_of_turned_parts(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = from_turned_parts(mesh, 130);
  const Tensor u = x.view({21, 21});
  for (int step = 0; step < 2; ++step) {
    const Tensor up = u.slice(0, 0, 19), down = u.slice(0, 2, 21);
    read(up);
    u.slice(0, 1, 20).copy_((up + down) / 2);
    read(down);
    read(u);
  }
  return {u, x, u.roll({1}, {0})};
}

std::vector<Tensor> lists_with_turned_parts(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = from_turned_parts(mesh, 140), v = x.view({21, 21});
  const Tensor z = laid_out({8, 21}, 141, mesh, Shard(0)), sum = z.t().mm(z),
               r = laid_out({21, 21}, 142, mesh, Shard(1));
  std::vector<Tensor> list{v, sum, r};
  at::_foreach_mul_(list, 0.5);
  for (const Tensor& t : list) read(t);
  read(x);
  at::_foreach_add_(list, std::vector<Tensor>{r, r, r});
  for (const Tensor& t : list) read(t);
  const auto norms = at::_foreach_norm(list, 2);
  read(norms[1]);
  x.mul_(2);
  read(v);
  const auto products = at::_foreach_mul(list, std::vector<Tensor>{v, v, v});
  return {x, v, sum, norms[0], norms[2], products[1], products[2]};
}

// ------------------------------------------------------------ sequences, slices

std::vector<Tensor> packed_sequences(const DeviceMesh& mesh, const Read& read) {
  torch::manual_seed(5);
  const Tensor x = laid_out({5, 8, 6}, 150, mesh, Shard(1)) * 1;
  const Tensor lengths = torch::tensor({5, 5, 4, 4, 3, 2, 2, 1});
  std::vector<Tensor> results;
  {
    const auto [data, sizes] = at::_pack_padded_sequence(x, lengths, /*batch_first=*/false);
    read(data);
    const auto [padded, counts] = at::_pad_packed_sequence(data.tanh(), sizes, false, 0, 5);
    read(padded);
    const auto [again, counts_again] = at::_pad_packed_sequence(data, sizes, false, 0, 5);
    read(again);
    results = {data, padded, again};
    data.mul_(2);
    read(data);
    results.push_back(std::get<0>(at::_pad_packed_sequence(data, sizes, false, 0, 5)));
  }
  x.mul_(3);
  read(x);
  const auto [data, sizes] = at::_pack_padded_sequence(x, lengths, /*batch_first=*/false);
  results.push_back(std::get<0>(at::_pad_packed_sequence(data, sizes, false, 0, 5)));
  return results;
}

std::vector<Tensor> padded_form_in_another_layout(const DeviceMesh& mesh, const Read& read) {
  const Tensor x = laid_out({5, 8, 6}, 151, mesh, Shard(1)) * 1;
  const Tensor lengths = torch::tensor({5, 5, 4, 4, 3, 2, 2, 1});
  Tensor data, sizes;
  std::tie(data, sizes) = at::_pack_padded_sequence(x, lengths, /*batch_first=*/false);
  read(data);
  const Tensor sum = data.sum();
  data = Tensor();
  sizes = Tensor();
  read(x);
  relayout_(x, {Shard(2)});
  return {x, sum};
}

std::vector<Tensor> recurrent_net(const DeviceMesh& mesh, const Read& read) {
  torch::manual_seed(6);
  torch::nn::LSTM net(torch::nn::LSTMOptions(6, 4).num_layers(2));
  net->to(torch::kDouble);
  std::vector<Tensor> parameters;
  for (const Tensor& p : net->parameters()) {
    parameters.push_back(distribute_tensor(p.detach(), mesh, {Replicate()}).requires_grad_());
    p.set_data(parameters.back());
  }
  const Tensor x = laid_out({5, 8, 6}, 152, mesh, Shard(1)), state = laid_out({2, 8, 4}, 153, mesh, Shard(1));
  const auto packed = torch::nn::utils::rnn::pack_padded_sequence(x, torch::tensor({5, 5, 4, 4, 3, 2, 2, 1}));
  read(packed.data());
  const auto [out, states] = net->forward_with_packed_input(packed, std::tuple(state, state));
  read(out.data());
  const auto [padded, lengths] = torch::nn::utils::rnn::pad_packed_sequence(out);
  read(padded);
  padded.square().sum().backward();
  std::vector<Tensor> results{padded.detach()};
  for (const Tensor& p : net->parameters()) {
    read(p.grad());
    results.push_back(p.grad());
  }
  return results;
}

std::vector<Tensor> slices_of_slices(const DeviceMesh& mesh, const Read& read, int64_t ghost_rows) {
  const Tensor u = laid_out({24, 6}, 160, mesh, Shard(0)) * 1;
  if (ghost_rows > 0) set_ghost_width(u, {ghost_rows, 0});
  const Tensor inner = u.slice(0, 1, 23), core = inner.slice(0, 1, 21), row = u.select(0, 7);
  read(core);
  read(row);
  const Tensor a = core + u.slice(0, 3, 23);
  u.mul_(2);
  read(inner);
  core.add_(1);
  read(row);
  read(inner);
  inner.slice(1, 0, 3).copy_(inner.slice(1, 3, 6));
  read(core);
  row.zero_();
  read(u);
  const Tensor never_read = u.slice(0, 5, 20);
  read(never_read);
  at::_foreach_mul_(std::vector<Tensor>{u.slice(0, 2, 9), u.slice(0, 11, 20)}, 3.0);
  read(u);
  return {a, inner, core, row, u};
}

// Rolls of a tensor, and of a slice of it.
std::vector<Tensor> rolls_within_a_ghost_width(const DeviceMesh& mesh, const Read& read) {
  const Tensor u = laid_out({24, 6}, 170, mesh, Shard(0)) * 1;
  set_ghost_width(u, {2, 1});
  const Tensor a = u.roll(1, 0);
  read(u);
  const Tensor b = u.roll({-2, 1}, {0, 1});
  const Tensor kept = u.clone();
  u.mul_(2);
  read(kept);
  const Tensor inner = u.slice(0, 1, 23);
  set_ghost_width(inner, {1, 0});
  read(inner);
  const Tensor c = inner.roll(-1, 0) + kept.slice(0, 1, 23).roll(1, 0);
  u.add_(1);
  read(inner);
  read(c);
  const Tensor d = inner.roll(1, 0);
  inner.add_(u.roll(2, 0).slice(0, 1, 23));
  read(u);
  return {a, b, c, d, kept.roll(2, 0), u.roll(-1, 0)};
}

std::vector<Program> programs_of_parts() {
  return {
      {"results that are arriving", arriving_results},
      {"an arriving sum with other strides", arriving_sum_with_other_strides},
      {"views of turned parts", views_of_turned_parts},
      {"gradients in turned parts", gradients_in_turned_parts},
      {"gradients given in turned parts", gradients_given_in_turned_parts},
      {"a stencil of turned parts", stencil_of_turned_parts},
      {"lists with turned parts", lists_with_turned_parts},
      {"packed sequences", packed_sequences},
      {"a padded form that gets another layout", padded_form_in_another_layout},
      {"a recurrent net", recurrent_net},
      {"slices of slices", [](auto& mesh, auto& read) { return slices_of_slices(mesh, read, 0); }},
      {"rolls within a ghost width", rolls_within_a_ghost_width},
      {"slices of slices, with a ghost width", [](auto& mesh, auto& read) { return slices_of_slices(mesh, read, 2); }},
  };
}

TEST_CASE("reads of parts on one rank change neither communication nor values", "[processes][reads]") {
  check_reads(programs_of_parts());
}

}  // namespace
}  // namespace dtensor::testing
