// Packing and padding of sequences: in every layout, compared with plain ATen.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_pack_padded_sequence.h>
#include <ATen/ops/_pad_packed_sequence.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/pad_sequence.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor lengths() { return at::tensor(std::vector<int64_t>{4, 3, 3, 1, 1}); }
at::Tensor numbers_of_rows() { return at::tensor(std::vector<int64_t>{5, 3, 3, 1}); }

bool is_silent(const std::vector<Placement>& p) { return p[0].is_replicate() || p[0].is_shard() || p[0].is_partial(); }

}  // namespace

TEST_CASE("packing in every layout equals plain ATen without communication", "[ops][packed]") {
  for (const bool batch_first : {false, true}) {
    OpCase c{"pack"};
    c.fn = [=](const Tensors& t) {
      const auto [data, sizes] = at::_pack_padded_sequence(t[0], lengths(), batch_first);
      CHECK(at::equal(sizes, numbers_of_rows()));
      return Tensors{data};
    };
    c.shapes =
        batch_first ? std::vector<std::vector<int64_t>>{{5, 6, 2}} : std::vector<std::vector<int64_t>>{{6, 5, 2}};
    c.silent = is_silent;
    c.strided_inputs = true;
    check_op(c);
  }
}

TEST_CASE("padding in every layout equals plain ATen without communication", "[ops][packed]") {
  for (const int64_t total_length : {0, 6}) {
    OpCase c{"pad"};
    c.fn = [=](const Tensors& t) {
      const auto [padded, n] = at::_pad_packed_sequence(t[0], numbers_of_rows(), total_length == 0, 1.5, total_length);
      CHECK(at::equal(n, lengths()));
      return Tensors{padded};
    };
    c.shapes = {{12, 2}};
    c.silent = is_silent;
    check_op(c);
  }
}

TEST_CASE("pad_sequence in every layout equals plain ATen, without communication for whole sequences",
          "[ops][packed]") {
  for (const bool is_left : {false, true}) {
    OpCase c{"pad_sequence"};
    c.fn = [=](const Tensors& t) {
      return Tensors{is_left ? at::pad_sequence(t, /*batch_first=*/true, 1.5, "left") : at::pad_sequence(t)};
    };
    c.shapes = {{4, 3}, {6, 3}, {2, 3}};  // of a dim of size 1, strides may differ from ATen's
    c.silent = [](const std::vector<Placement>& placements) {
      return std::all_of(placements.begin(), placements.end(),
                         [](const Placement& p) { return p.is_replicate() || p == Shard(1); });
    };
    check_op(c, 30);
  }
}

TEST_CASE("pad_sequence gives the dtype and the trailing sizes of the first sequence", "[ops][packed]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto check = [&](const Tensors& plain, double padding) {
    Tensors split;
    for (const at::Tensor& t : plain) split.push_back(lay_out(t, mesh, {Replicate()}));
    CHECK(difference(at::pad_sequence(split, false, padding), at::pad_sequence(plain, false, padding)) == std::nullopt);
  };
  const at::Tensor rows = at::rand({3, 2}, at::kDouble), whole = at::tensor({1, 2, 3, 4}, at::kLong);
  check({rows, whole.view({4, 1})}, 0.5);
  check({rows, rows.slice(0, 0, 0)}, 0.5);
  check({whole, whole.slice(0, 0, 1), at::rand({2}, at::kDouble).mul(9)}, -1);
  CHECK_THROWS_WITH(at::pad_sequence({lay_out(rows, mesh, {Shard(0)})}, false, 0, "middle"),
                    Catch::Contains("padding_side"));
}

TEST_CASE("pad_sequence moves each sequence at most once, and only those whose steps are sharded", "[ops][packed]") {
  const DeviceMesh mesh(World::abstract(4), {4});
  const auto calls_of = [&](const Placement& given, const Placement& result) {
    Tensors sequences;
    for (const int64_t steps : {64, 40, 7}) sequences.push_back(zeros({steps, 8}, mesh, {given}));
    CommDebugMode comm;
    CHECK(DTensor(at::pad_sequence(sequences, /*batch_first=*/true)).placements() == Placements{result});
    return comm.total();
  };
  CHECK(calls_of(Replicate(), Replicate()) == 0);
  CHECK(calls_of(Shard(1), Shard(2)) == 0);
  CHECK(calls_of(Shard(0), Shard(1)) == 2);  // the longest one is not padded
}

TEST_CASE("packed integers and bools keep their values", "[ops][packed]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor x = at::rand({6, 5, 2}, at::kDouble).mul(9);
  for (const c10::ScalarType dtype : {at::kLong, at::kBool, at::kByte}) {
    const auto split = distribute_tensor(x.to(dtype), mesh, {Shard(1)});
    const auto [data, sizes] = at::_pack_padded_sequence(split, lengths(), false);
    CHECK(at::equal(full_tensor(data), std::get<0>(at::_pack_padded_sequence(x.to(dtype), lengths(), false))));
  }
}

TEST_CASE("a batch packed and padded again stays split, unless one of the two was written to", "[ops][packed]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const at::Tensor values = at::rand({6, 5, 2}, at::kDouble);
  const auto plain = at::_pack_padded_sequence(values, lengths(), false);
  const at::Tensor expected =
      std::get<0>(at::_pad_packed_sequence(std::get<0>(plain), std::get<1>(plain), false, 0, 0));
  auto x = distribute_tensor(values, mesh, {Shard(1)});
  const auto [data, sizes] = at::_pack_padded_sequence(x, lengths(), false);
  const auto padded = [&, data = data, sizes = sizes] {
    return std::get<0>(at::_pad_packed_sequence(data, sizes, false, 0, 0));
  };
  CommDebugMode comm;
  CHECK(to_string(DTensor(padded()).placements()) == "S(1)");
  CHECK(comm.total() == 0);
  CHECK(at::equal(full_tensor(padded()), expected));
  x.zero_();  // packed before
  CHECK(at::equal(full_tensor(padded()), expected));
  at::Tensor rows = data;
  rows.mul_(2);
  CHECK(at::equal(full_tensor(padded()), expected * 2));
}

TEST_CASE("packing: errors", "[ops][packed]") {
  const DeviceMesh& mesh = test_meshes()[0];
  const auto x = distribute_tensor(at::rand({6, 5, 2}), mesh, {Shard(1)});
  const auto unsorted = at::tensor(std::vector<int64_t>{1, 4, 3, 1, 1});
  CHECK_THROWS_WITH(at::_pack_padded_sequence(x, unsorted, false), Catch::Contains("enforce_sorted"));
  const auto [data, sizes] = at::_pack_padded_sequence(x, lengths(), false);
  CHECK_THROWS_WITH(at::_pad_packed_sequence(data, sizes, false, 0, 2), Catch::Contains("Expected total_length"));
}

}  // namespace dtensor::testing
