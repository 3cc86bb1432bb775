// QR and singular values of tall matrices with split rows: with the signs of a single Householder QR, sending only the
// triangles.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linalg_pinv.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/linalg_svd.h>
#include <ATen/ops/linalg_svdvals.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
namespace {

bool is_close(const at::Tensor& d, const at::Tensor& plain) {
  return d.sizes() == plain.sizes() && at::allclose(full_tensor(d), plain, 1e-9, 1e-10);
}

TEST_CASE("tall matrices: QR of split rows equals one device, signs included", "[ops][tall_matrices]") {
  struct Case {
    std::vector<int64_t> sizes;
    int64_t ranks;
  };
  const Case cases[] = {{{203, 5}, 2}, {{203, 5}, 4}, {{90, 1}, 3}, {{2, 203, 5}, 4}, {{66, 6}, 5}, {{101, 10}, 3}};
  for (const auto& [sizes, ranks] : cases) {
    for (const auto dtype : {at::kDouble, at::kComplexDouble}) {
      CAPTURE(sizes, ranks, dtype);
      const DeviceMesh mesh(World::local(ranks), {ranks}, {"x"});
      const auto rows = static_cast<int64_t>(sizes.size()) - 2;
      const at::Tensor a = at::randn(sizes, dtype), d = lay_out(a, mesh, {Shard(rows)});
      CommDebugMode comm;
      const auto [q, r] = at::linalg_qr(d);
      CHECK(comm.total() == 1);
      CHECK(comm.bytes() < static_cast<int64_t>(a.nbytes()) / ranks * (ranks - 1));  // of a gather
      CHECK(DTensor(q).placements() == Placements{Shard(rows)});
      CHECK(DTensor(r).placements() == Placements{Replicate()});
      const auto [expected_q, expected_r] = at::linalg_qr(a);
      CHECK(is_close(q, expected_q));
      CHECK(is_close(r, expected_r));
      CHECK(q.strides() == expected_q.strides());
      CHECK(r.strides() == expected_r.strides());
      CHECK(is_close(at::linalg_svdvals(d), at::linalg_svdvals(a)));
      const auto [u, s, vh] = at::linalg_svd(d, /*full_matrices=*/false);
      CHECK(DTensor(u).placements() == Placements{Shard(rows)});
      CHECK(is_close(s, at::linalg_svdvals(a)));
      CHECK(at::allclose(full_tensor(at::matmul(u * s.unsqueeze(-2), vh)), a, 1e-9, 1e-10));
    }
  }
}

TEST_CASE("tall matrices: the first rows on several ranks, or split by several mesh dims", "[ops][tall_matrices]") {
  const DeviceMesh mesh(World::local(12), {2, 6}, {"dp", "x"});
  const at::Tensor a = at::randn({300, 60}, at::kDouble);  // 25 rows per rank
  const auto [expected_q, expected_r] = at::linalg_qr(a);
  for (const Placements& placements :
       {Placements{Shard(0), Shard(0)}, Placements{Replicate(), Shard(0)}, Placements{Shard(1), Shard(0)}}) {
    CAPTURE(to_string(placements));
    const auto [q, r] = at::linalg_qr(lay_out(a, mesh, placements));
    CHECK(is_close(q, expected_q));
    CHECK(is_close(r, expected_r));
  }
  const at::Tensor tall = at::randn({700, 5}, at::kDouble);
  CommDebugMode comm;
  const auto [q, r] = at::linalg_qr(lay_out(tall, mesh, {Shard(0), Shard(0)}));
  CHECK(comm.bytes() == 11 * 10 * 5 * 8);  // a triangle, and room for the first rows of Q, from every other rank
  CHECK(is_close(q, std::get<0>(at::linalg_qr(tall))));
}

TEST_CASE("tall matrices: gradients, and operators composed of QR", "[ops][tall_matrices]") {
  const DeviceMesh mesh(World::local(4), {4}, {"x"});
  const at::Tensor a = at::randn({120, 4}, at::kDouble), weight = at::randn({120, 4}, at::kDouble);
  const at::Tensor plain = a.clone().requires_grad_(), split = lay_out(a, mesh, {Shard(0)}).requires_grad_();
  const auto loss = [](const at::Tensor& x, const at::Tensor& w) {
    const auto [q, r] = at::linalg_qr(x);
    return (q * w).sum() + r.pow(3).sum() + at::linalg_svdvals(x).pow(2).sum();
  };
  loss(plain, weight).backward();
  loss(split, lay_out(weight, mesh, {Shard(0)})).backward();
  CHECK(is_close(split.grad(), plain.grad()));
  CHECK(is_close(at::linalg_pinv(split.detach()), at::linalg_pinv(a)));
  CHECK(is_close(std::get<1>(at::linalg_qr(split.detach(), "r")), std::get<1>(at::linalg_qr(a, "r"))));
  CHECK(is_close(std::get<0>(at::linalg_qr(split.detach(), "complete")), std::get<0>(at::linalg_qr(a, "complete"))));
}

}  // namespace
}  // namespace dtensor::testing
