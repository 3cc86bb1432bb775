// Compares operators over split dims with plain ATen: values, the layout of inputs and results, gradients.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {

using Tensors = std::vector<at::Tensor>;
using Ints = std::vector<int64_t>;
using Fn = std::function<Tensors(const Tensors&)>;

inline const DeviceMesh& line() {
  static const auto* mesh = new DeviceMesh(World::local(4), {4}, {"x"});
  return *mesh;
}
inline const DeviceMesh& grid() {
  static const auto* mesh = new DeviceMesh(World::local(6), {2, 3}, {"y", "x"});
  return *mesh;
}

// In the layouts that check_op takes, with inputs of other strides as well.
inline void check(const char* name, std::vector<Ints> shapes, Fn fn) {
  OpCase c{name, std::move(fn), std::move(shapes)};
  c.strided_inputs = true;
  check_op(c, /*max_2d=*/60);
}

// For counts of bytes at sizes that need no memory.
inline at::Tensor meta_tensor(const DeviceMesh& mesh, Ints sizes, const Placements& placements) {
  return distribute_tensor(at::empty(sizes, at::TensorOptions(at::kMeta).dtype(at::kFloat)), mesh, placements);
}

// The first input has layout `first`, the others `others`.
inline void compare(const char* name, const DeviceMesh& mesh, const Placements& first, const Placements& others,
                    const std::vector<Ints>& shapes, const Fn& fn, bool keeps = true) {
  CAPTURE(name, to_string(first), to_string(others));
  Tensors plain, split;
  for (size_t i = 0; i < shapes.size(); ++i) {
    plain.push_back(at::randn(shapes[i], at::kDouble).requires_grad_());
    split.push_back(lay_out(plain[i], mesh, i == 0 ? first : others).requires_grad_());
  }
  const Tensors expected = fn(plain), actual = fn(split);
  std::vector<at::Tensor> roots, seeds, split_roots, split_seeds;
  for (size_t k = 0; k < expected.size(); ++k) {
    const auto wrong = difference(actual[k].detach(), expected[k].detach());
    CHECK(wrong.value_or("") == "");
    // If a weight is split, too, its layout may be used instead.
    const bool is_asked = keeps && others == Placements(others.size(), Replicate());
    if (is_asked) CHECK(DTensor(actual[k]).placements() == first);
    if (!expected[k].is_floating_point()) continue;
    roots.push_back(expected[k]);
    seeds.push_back(at::randn(expected[k].sizes(), at::kDouble));
    split_roots.push_back(actual[k]);
    split_seeds.push_back(
        lay_out(seeds.back(), mesh, keeps ? first : without_partials(DTensor(actual[k]).placements())));
  }
  torch::autograd::backward(roots, seeds);
  torch::autograd::backward(split_roots, split_seeds);
  for (size_t i = 0; i < plain.size(); ++i) {
    const auto wrong = difference(split[i].grad(), plain[i].grad());
    CAPTURE(i);
    CHECK(wrong.value_or("") == "");
  }
}

struct Split {
  DeviceMesh mesh;
  Placements first, others;
};

// Layouts of [batch, channels, height, width].
inline std::vector<Split> splits() {
  const Placements whole = {Replicate(), Replicate()};
  return {
      {line(), {Shard(2)}, {Replicate()}},
      {line(), {Shard(3)}, {Replicate()}},
      {grid(), {Shard(2), Shard(3)}, whole},
      {grid(), {Shard(3), Shard(3)}, whole},
      {grid(), {Shard(0), Shard(2)}, whole},
      {grid(), {Shard(3), Replicate()}, whole},
      {grid(), {Shard(2), Shard(3)}, {Shard(0), Replicate()}},  // weights are redistributed
  };
}

}  // namespace dtensor::testing
