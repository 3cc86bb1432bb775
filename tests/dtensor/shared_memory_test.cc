// Which distributed tensors and parts share memory: a write to one is visible in the other.
#include <algorithm>
#include <chrono>

#include "dtensor/tensor/memory_overlap.h"
#include "tests/dtensor/view_pairs.h"
#include "tests/testing/property.h"

namespace dtensor::testing {
using namespace internal;

namespace {

TEST_CASE("shared memory: aliases that the schema does not declare") {
  const DeviceMesh mesh = mesh_of(2);
  const auto a = numbers({3, 3}), b = numbers({2, 2});
  auto out = distribute_tensor(torch::zeros({6, 6}, torch::kDouble), mesh, {Shard(0)});
  torch::kron_out(out, distribute_tensor(a, mesh), distribute_tensor(b, mesh));
  CHECK(same(out, torch::kron(a, b)));

  const auto part = torch::ones({4}, torch::kDouble);
  const auto sum = from_local({part, part}, mesh, {Partial()}).clone();
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 8);  // the sum is cached
  sum.unsafe_chunk(2)[0].mul_(5.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 24);
  sum.unsafe_split(3)[1].mul_(3.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 28);
  sum.contiguous().mul_(2.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 56);
  at::_unsafe_view(sum, {2, 2}).mul_(2.);
  CHECK(full_tensor(sum.relu()).sum().item<double>() == 112);
}

TEST_CASE("shared memory: as_strided addresses the memory of a single device") {
  const DeviceMesh mesh = mesh_of(2);
  const auto t = numbers({6});
  const auto r = distribute_tensor(t, mesh), s = distribute_tensor(t, mesh, {Shard(0)});
  for (const Tensor& x : {r, s}) {
    const auto tail = x.slice(0, 2), plain = t.slice(0, 2);
    CHECK(tail.storage_offset() == 2);
    CHECK(same(tail.as_strided({2}, {1}, 0), plain.as_strided({2}, {1}, 0)));
    CHECK(same(tail.as_strided({2}, {1}), plain.as_strided({2}, {1})));
    CHECK(same(tail.as_strided({4}, {1}, 0), plain.as_strided({4}, {1}, 0)));
    CHECK(same(tail.as_strided({4}, {1}, 2), plain));
  }
  // Columns of a matrix sharded by rows are not contiguous on any rank.
  const auto column = distribute_tensor(numbers({6, 2}), mesh, {Shard(0)}).select(1, 1);
  CHECK(same(column.as_strided({2}, {4}), numbers({6, 2}).select(1, 1).as_strided({2}, {4})));
  CHECK_THROWS_WITH(column.as_strided({2}, {4}, 0), Catch::Contains("reach beyond the tensor laid out as S(0)"));
}

TEST_CASE("shared memory: ranks do not share memory they write to") {
  const DeviceMesh mesh = mesh_of(3);
  const auto t = torch::ones({3}, torch::kDouble);
  auto x = from_local({t, t, t}, mesh, {Replicate()});
  x += 1;
  for (const auto& local : to_local(x)) CHECK(torch::equal(local, torch::full({3}, 2, torch::kDouble)));
  auto y = from_local({t.view({3, 1}).t(), t.slice(0, 0, 1).expand({1, 3}), t.view({1, 3})}, mesh, {Replicate()});
  y.mul_(2);
  CHECK(full_tensor(y).sum().item<double>() == 6);
  CHECK(t.sum().item<double>() == 3);
  // Pieces of one tensor are not copied.
  auto whole = torch::zeros({4, 6}, torch::kDouble);
  from_local(whole.chunk(3, 1), mesh, {Shard(1)}).add_(1);
  CHECK(whole.sum().item<double>() == 24);
}

TEST_CASE("shared memory: an alias keeps the memory, and no handle of the tensor that made it") {
  const DeviceMesh mesh = mesh_of(2);
  const MemoryMeter& meter = mesh.world().memory();
  const auto numbers_of_rank = numbers({4, 2});
  const Tensor x = distribute_tensor(numbers_of_rank, mesh, {Replicate()});
  for (int call = 0; call < 2; ++call) {  // the second has a typed kernel
    const int64_t before = meter.live_bytes();
    Tensor sum = x.add(x), alias = sum.detach();
    const Tensor part = meta_without_sync(sum).locals[0];
    CHECK(part.use_count() == 2);
    sum = Tensor();
    CHECK(part.use_count() == 1);
    CHECK(meter.live_bytes() == before + 4 * 2 * 8);
    alias.mul_(2);
    CHECK(same(alias, numbers_of_rank * 4));
    CHECK(part.equal(numbers_of_rank * 4));
    alias = Tensor();
    CHECK(meter.live_bytes() == before);
  }
}

TEST_CASE("shared memory: finds parts that share elements, for many ranks too") {
  CHECK(holds("overlap of windows on one tensor", 500, [] {
    const Tensor memory = torch::zeros({60});
    std::vector<Tensor> parts;
    for (int64_t n = draw(2, 7); n > 0; --n) {
      const int64_t rows = draw(0, 3), columns = draw(1, 3), step = draw(0, 8);
      parts.push_back(memory.as_strided({rows, columns}, {step, draw(1, 2)}, draw(0, 20)));
    }
    const auto found = which_overlap(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      bool shared = overlaps_itself(parts[i]);
      for (size_t k = 0; k < parts.size(); ++k) shared = shared || (k != i && overlap(parts[i], parts[k]));
      RC_ASSERT(found[i] == shared);
    }
  }));
  const int64_t many = 100000;
  const std::vector<Tensor> pieces = torch::zeros({many}).split(1);
  const auto begin = std::chrono::steady_clock::now();
  const auto found = which_overlap(pieces);
  CHECK(std::count(found.begin(), found.end(), true) == 0);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));  // pair by pair would take minutes
}

}  // namespace
}  // namespace dtensor::testing
