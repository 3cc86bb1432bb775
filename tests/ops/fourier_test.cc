// Fourier transforms in every layout; a transformed split dim is redistributed, not gathered.
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/fft_fft.h>
#include <ATen/ops/fft_fft2.h>
#include <ATen/ops/fft_fftn.h>
#include <ATen/ops/fft_hfft.h>
#include <ATen/ops/fft_hfft2.h>
#include <ATen/ops/fft_hfftn.h>
#include <ATen/ops/fft_ifft.h>
#include <ATen/ops/fft_ifft2.h>
#include <ATen/ops/fft_ihfft.h>
#include <ATen/ops/fft_ihfft2.h>
#include <ATen/ops/fft_ihfftn.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_irfft2.h>
#include <ATen/ops/fft_irfftn.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/fft_rfft2.h>
#include <ATen/ops/fft_rfftn.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "observe/comm_debug_mode.h"
#include "plan/redistribute_plan.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

using Tensors = std::vector<at::Tensor>;

void check(const char* name, std::function<at::Tensor(const at::Tensor&)> fn, std::vector<int64_t> whole,
           bool complex = false, std::vector<int64_t> shape = {5, 6, 3}) {
  OpCase c{name, [fn](auto& t) { return Tensors{fn(t[0])}; }, {shape}};
  c.make = [complex](size_t, const auto& sizes) {
    return at::rand(sizes, at::TensorOptions(complex ? at::kComplexDouble : at::kDouble));
  };
  c.silent = [=](const std::vector<Placement>& p) {
    // The complex result of a real transform is costlier to reduce.
    if (p[0].is_partial() && !complex) return false;
    return !p[0].is_sharded() || std::find(whole.begin(), whole.end(), p[0].dim()) == whole.end();
  };
  c.strided_inputs = true;
  check_op(c, 30);
}

TEST_CASE("Fourier transforms match ATen in every layout", "[ops][fourier]") {
  check(
      "fft", [](auto& x) { return at::fft_fft(x); }, {2}, true);
  check("fft of real numbers", [](auto& x) { return at::fft_fft(x); }, {2});
  check(
      "fft in the middle", [](auto& x) { return at::fft_fft(x, std::nullopt, 1); }, {1}, true);
  check(
      "fft of the first dim", [](auto& x) { return at::fft_fft(x, std::nullopt, 0, "ortho"); }, {0}, true);
  check(
      "ifft", [](auto& x) { return at::fft_ifft(x, std::nullopt, 1); }, {1}, true);
  check(
      "fft2", [](auto& x) { return at::fft_fft2(x); }, {1, 2}, true);
  check(
      "fftn", [](auto& x) { return at::fft_fftn(x); }, {0, 1, 2}, true);
  check("rfft", [](auto& x) { return at::fft_rfft(x, std::nullopt, 1); }, {1});
  check("rfft2", [](auto& x) { return at::fft_rfft2(x); }, {1, 2});
  check(
      "irfft", [](auto& x) { return at::fft_irfft(x, 7, 1); }, {1}, true);
  check(
      "irfft2", [](auto& x) { return at::fft_irfft2(x); }, {1, 2}, true);
  check(
      "hfft", [](auto& x) { return at::fft_hfft(x); }, {2}, true);
  check("of one element", [](auto& x) { return at::fft_fft(x); }, {2}, true, {5, 3, 1});
}

TEST_CASE("a transformed split dim moves to another dim", "[ops][fourier]") {
  const auto& mesh = test_meshes()[0];
  const auto x = at::rand({8, 16, 4}, at::TensorOptions(at::kComplexDouble));
  const auto split = distribute_tensor(x, mesh, {Shard(1)});
  CommDebugMode comm;
  const auto y = at::fft_fft(split, std::nullopt, 1);
  CHECK(comm.count("all_to_all") == 1);
  INFO(comm);
  CHECK(comm.total() == 1);
  CHECK(full_tensor(y).allclose(at::fft_fft(x, std::nullopt, 1)));
}

// On ranks that each hold some of it: counts the bytes without computing.
struct Moved {
  Placements layout;  // of the result
  int64_t collectives = 0, all_gathers = 0, bytes = 0;
};

Moved moved(std::function<at::Tensor(const at::Tensor&)> fn, const DeviceMesh& mesh, const Placements& layout,
            std::vector<int64_t> shape, c10::ScalarType dtype = at::kComplexDouble) {
  const auto x = zeros(shape, mesh, layout, {.dtype = dtype});
  CommDebugMode comm;
  const auto y = fn(x);
  return {DTensor(y).placements(), comm.total(), comm.count("all_gather"), comm.bytes()};
}

TEST_CASE("of several split dims, transformed one after the other, each moves once", "[ops][fourier]") {
  const DeviceMesh line(World::abstract(8), {8}), grid(World::abstract(8), {4, 2});
  const auto fft2 = [](auto& x) { return at::fft_fft2(x); };
  const auto fftn = [](auto& x) { return at::fft_fftn(x); };
  constexpr int64_t kBytes = 1024 * 1024 * 16;

  // Rows: the columns' transform is local, then an all-to-all. An eighth of the tensor, minus what stays.
  const Moved rows = moved(fft2, line, {Shard(0)}, {1024, 1024});
  CHECK(rows.layout == Placements{Shard(1)});
  CHECK(rows.collectives == 1);
  CHECK(rows.bytes == kBytes / 8 * 7 / 8);
  const Moved columns = moved(fft2, line, {Shard(1)}, {1024, 1024});
  CHECK(columns.layout == Placements{Shard(0)});
  CHECK(columns.bytes == kBytes / 8 * 7 / 8);

  // Both dims are split: each is whole once.
  const Moved tiles = moved(fft2, grid, {Shard(0), Shard(1)}, {1024, 1024});
  CHECK(tiles.all_gathers == 0);
  CHECK(tiles.bytes < kBytes / 2);
  // Pencils: one dim of three is whole at a time, two exchanges.
  const Moved pencils = moved(fftn, grid, {Shard(0), Shard(1)}, {64, 64, 64});
  CHECK(pencils.collectives == 2);
  CHECK(pencils.all_gathers == 0);
  CHECK(pencils.bytes < 64 * 64 * 64 * 16 / 4);

  // The dim that is halved comes first, and last on the way back.
  const Moved real = moved([](auto& x) { return at::fft_rfft2(x); }, line, {Shard(0)}, {1024, 1024}, at::kDouble);
  CHECK(real.layout == Placements{Shard(1)});
  CHECK(real.collectives == 1);
  const Moved back = moved([](auto& x) { return at::fft_irfft2(x); }, line, {Shard(1)}, {1024, 513});
  CHECK(back.layout == Placements{Shard(0)});
  CHECK(back.collectives == 1);

  // Images of a batch do not move; a batch that can be split takes all at once.
  const Moved batch = moved(fft2, line, {Shard(0)}, {64, 32, 32});
  CHECK(batch.collectives == 0);
  CHECK(batch.layout == Placements{Shard(0)});
  CHECK(moved(fft2, grid, {Shard(1), Shard(2)}, {64, 64, 64}).all_gathers == 0);
  // A batch with fewer images than ranks must not leave ranks without work.
  CHECK(moved(fft2, line, {Shard(1)}, {2, 512, 512}).layout == Placements{Shard(2)});
}

TEST_CASE("transformed split dims move within the memory limit", "[ops][fourier]") {
  const DeviceMesh grid(World::local(4), {2, 2});
  const auto x = at::rand({8, 8, 3}, at::TensorOptions(at::kComplexDouble));
  const auto split = distribute_tensor(x, grid, {Shard(0), Shard(1)});
  // The last dim has been transformed, but is uneven.
  const int64_t last = plan_of(split, {Shard(0), Shard(2)}).peak_bytes;
  REQUIRE(plan_of(split, {Shard(0), Shard(0)}).peak_bytes < last);
  const auto limits = {RedistributeOptions().max_bytes, last - 1};
  for (const int64_t max_bytes : limits) {
    const auto y = [&] {
      const RedistributeMemoryLimit limit(max_bytes);
      return at::fft_fftn(split);
    }();
    CHECK(full_tensor(y).allclose(at::fft_fftn(x)));
  }
  const RedistributeMemoryLimit none(64);
  CHECK_THROWS_WITH(at::fft_fftn(split), Catch::Contains("max_bytes is 64, but every route needs at least"));
}

TEST_CASE("transforms of several split dims match ATen, gradients too", "[ops][fourier]") {
  // Large enough that dims are not gathered; uneven, and with empty parts.
  const auto norms = {"backward", "ortho", "forward"};
  for (const auto& shape : std::vector<std::vector<int64_t>>{{62, 65}, {3, 43, 50}, {17, 2, 81}}) {
    for (const char* norm : norms) {
      const std::string name = c10::str(norm, " ", shape);
      const std::vector<std::pair<bool, std::function<at::Tensor(const at::Tensor&)>>> transforms = {
          {true, [=](auto& x) { return at::fft_fftn(x, std::nullopt, std::nullopt, norm); }},
          {true,
           [=](auto& x) {
             return at::fft_ifft2(x, std::nullopt, {-2, -1}, norm);
           }},
          {false, [=](auto& x) { return at::fft_rfftn(x, std::nullopt, std::nullopt, norm); }},
          {true,
           [=](auto& x) {
             return at::fft_irfft2(x, {{60, 71}}, {-2, -1}, norm);
           }},
          {true, [=](auto& x) {
             return at::fft_fft2(x.conj(), std::nullopt, {-1, -2}, norm);
           }}};
      for (size_t i = 0; i < transforms.size(); ++i) {
        OpCase c{c10::str("transform ", i, " ", name),
                 [fn = transforms[i].second](auto& t) { return Tensors{fn(t[0])}; },
                 {shape}};
        c.make = [complex = transforms[i].first](size_t, const auto& sizes) {
          return at::rand(sizes, at::TensorOptions(complex ? at::kComplexDouble : at::kDouble));
        };
        c.strided_inputs = true;
        check_op(c, 6);
      }
    }
  }
}

TEST_CASE("a transform's gradient communicates as much as the transform", "[ops][fourier]") {
  const auto& mesh = test_meshes()[0];
  const auto x = at::rand({64, 64}, at::kComplexDouble);
  const auto split = distribute_tensor(x, mesh, {Shard(0)}).requires_grad_();
  const auto whole = x.clone().requires_grad_();
  CommDebugMode comm;
  at::abs(at::fft_fft2(split)).sum().backward();
  INFO(comm);
  CHECK(comm.total() == 2);
  CHECK(comm.count("all_to_all") == 2);
  at::abs(at::fft_fft2(whole)).sum().backward();
  CHECK(difference(split.grad(), whole.grad()) == std::nullopt);
}

TEST_CASE("A dim that is cut or padded, or transformed in two steps, moves once", "[ops][fourier]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"y", "x"});
  const at::Tensor x = at::rand({8, 6, 10}, at::kDouble), z = at::rand({8, 6, 10}, at::kComplexDouble);
  struct Row {
    const char* name;
    std::function<at::Tensor(const at::Tensor&)> f;
    at::Tensor whole;
  };
  const std::vector<int64_t> s{9, 7}, dims{1, 2};
  const Row table[] = {
      {"fft, padded", [](auto& t) { return at::fft_fft(t, 13); }, x},
      {"fft, cut", [](auto& t) { return at::fft_fft(t, 7); }, z},
      {"ifft", [](auto& t) { return at::fft_ifft(t, 12); }, z},
      {"rfft", [](auto& t) { return at::fft_rfft(t, 9); }, x},
      {"irfft", [](auto& t) { return at::fft_irfft(t, 15); }, z},
      {"hfft", [](auto& t) { return at::fft_hfft(t, 12); }, z},
      {"ihfft", [](auto& t) { return at::fft_ihfft(t, 12); }, x},
      {"fft2", [&](auto& t) { return at::fft_fft2(t, s); }, z},
      {"ifft2", [&](auto& t) { return at::fft_ifft2(t, s); }, z},
      {"rfft2", [&](auto& t) { return at::fft_rfft2(t, s, dims); }, x},
      {"irfftn", [&](auto& t) { return at::fft_irfftn(t, s); }, z},
      {"fftn",
       [&](auto& t) {
         return at::fft_fftn(t, std::vector<int64_t>{-1, 7}, dims);
       },
       z},
      {"hfft2", [](auto& t) { return at::fft_hfft2(t); }, z},
      {"hfftn", [&](auto& t) { return at::fft_hfftn(t, s, dims); }, z},
      {"ihfft2", [](auto& t) { return at::fft_ihfft2(t); }, x},
      {"ihfftn", [&](auto& t) { return at::fft_ihfftn(t, s); }, x},
  };
  for (const Row& row : table) {
    for (const Placements& placements :
         {Placements{Shard(2), Replicate()}, Placements{Replicate(), Shard(2)}, Placements{Shard(2), Shard(2)},
          Placements{Shard(0), Shard(2)}, Placements{Shard(1), Shard(2)}}) {
      if (placements[0] == Shard(1) && std::string(row.name).find('2') == std::string::npos) continue;
      CAPTURE(row.name, to_string(placements));
      const at::Tensor d = lay_out(row.whole, mesh, placements).requires_grad_();
      CommDebugMode comm;
      const at::Tensor y = row.f(d);
      CHECK(comm.total() == 1);
      CHECK(comm.implicit_count() == 1);
      const at::Tensor plain = row.whole.detach().clone().requires_grad_(), expected = row.f(plain);
      CHECK(difference(y.detach(), expected.detach()) == std::nullopt);
      at::abs(y).sum().backward();
      at::abs(expected).sum().backward();
      CHECK(difference(d.grad(), plain.grad(), 1e-8) == std::nullopt);
    }
  }
  // A vector is gathered before it is padded, and one that becomes much smaller is cut before it moves.
  CommDebugMode comm;
  const at::Tensor v = at::rand({30}, at::kDouble);
  CHECK(difference(at::fft_fft(lay_out(v, mesh, {Shard(0), Replicate()}), 50), at::fft_fft(v, 50)) == std::nullopt);
  CHECK(comm.total() == 1);
  comm.reset();
  const at::Tensor large = at::rand({64, 1 << 16}, at::kDouble);
  CHECK(difference(at::fft_fft(lay_out(large, mesh, {Shard(1), Replicate()}), 8), at::fft_fft(large, 8)) ==
        std::nullopt);
  CHECK(comm.bytes() <= 2 * 64 * 8 * 8);
}

}  // namespace
TEST_CASE("a transform under autocast computes in float, as in ATen", "[ops][fourier]") {
  const DeviceMesh mesh(World::local(4), {4});
  const at::Tensor x = at::rand({4, 8}).to(at::kBFloat16);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor expected = at::fft_fft(x), split = at::fft_fft(distribute_tensor(x, mesh, {Shard(1)}));
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  CHECK(split.scalar_type() == expected.scalar_type());
  CHECK(difference(split, expected, 1e-4) == std::nullopt);
}

}  // namespace dtensor::testing
