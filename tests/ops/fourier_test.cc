// Fourier transforms in every layout; a split dim that is transformed moves, it is not gathered.
#include <ATen/TensorOperators.h>
#include <ATen/ops/fft_fft.h>
#include <ATen/ops/fft_fft2.h>
#include <ATen/ops/fft_fftn.h>
#include <ATen/ops/fft_hfft.h>
#include <ATen/ops/fft_ifft.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_irfft2.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/fft_rfft2.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <functional>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
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
    // The complex numbers that come of real ones are dearer to reduce.
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

TEST_CASE("a split dim that is transformed moves to another", "[ops][fourier]") {
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

}  // namespace
}  // namespace dtensor::testing
