// Long vectors on any mesh: sorted, and looked up in order, against plain ATen.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include <limits>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {

inline at::Tensor seeded_normals(std::vector<int64_t> sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kDouble));
}

// nan equals nan.
inline bool same_values(const at::Tensor& a, const at::Tensor& b) {
  if (!a.is_floating_point()) return at::equal(a, b);
  return a.scalar_type() == b.scalar_type() && at::allclose(a, b, 0, 0, /*equal_nan=*/true);
}

// The mesh dim that cuts must have at least 5 ranks, else gathering is cheaper.
inline void check_split_sorts(const DeviceMesh& mesh, const Placements& placements) {
  constexpr int64_t n = 7001;
  const at::Tensor normal = seeded_normals({n}, 1);
  at::Tensor special = normal.clone();
  special.slice(0, 5, 4000, 400).fill_(std::numeric_limits<double>::quiet_NaN());
  special[77] = special[6000] = std::numeric_limits<double>::infinity();
  special.slice(0, 1000, 1010).fill_(0.0);
  special.slice(0, 2000, 2010).fill_(-0.0);  // equal to 0
  const std::vector<at::Tensor> inputs = {normal,
                                          special,
                                          normal.mul(3).round(),                  // few values, each on all ranks
                                          normal.mul(1e6).round().to(at::kLong),  // integers
                                          std::get<0>(normal.sort()),             // in order already
                                          at::where(normal > 2.5, normal, 0.0)};  // nearly all alike
  for (size_t i = 0; i < inputs.size(); ++i) {
    CAPTURE(i, to_string(placements), mesh.to_string());
    const at::Tensor &x = inputs[i], d = lay_out(x, mesh, placements);
    const auto is_element = [&](const at::Tensor& values, const at::Tensor& indices) {
      CHECK(same_values(x.take(full_tensor(indices)), full_tensor(values)));
    };
    for (const bool descending : {false, true}) {
      CommDebugMode comm;
      const auto [values, indices] = d.sort(/*stable=*/true, 0, descending);
      CHECK(comm.bytes() < n * 8 * (mesh.size(mesh.ndim() - 1) - 1) / mesh.size(mesh.ndim() - 1));  // of a gather
      CHECK(DTensor(values).placements() == placements);
      const auto [expected, places] = x.sort(true, 0, descending);
      CHECK(same_values(full_tensor(values), expected));
      CHECK(at::equal(full_tensor(indices), places));
    }
    const auto [kth, place] = d.kthvalue(1234, 0, /*keepdim=*/true);
    CHECK(same_values(full_tensor(kth), std::get<0>(x.kthvalue(1234, 0, true))));
    is_element(kth, place);
    CHECK(same_values(full_tensor(d.median()), x.median()));
    CHECK(same_values(full_tensor(d.nanmedian()), x.nanmedian()));
    const auto [median, middle] = d.median(0, /*keepdim=*/false);
    CHECK(same_values(full_tensor(median), std::get<0>(x.median(0))));
    is_element(median, middle);
    if (i == 1) CHECK(at::equal(full_tensor(middle), std::get<1>(x.median(0))));  // of several nan, the first
    const auto [most, where] = d.mode(0, /*keepdim=*/true);
    if (i != 0 && i != 1 && i != 4) CHECK(same_values(full_tensor(most), std::get<0>(x.mode(0, true))));
    is_element(most, where);
  }

  const at::Tensor plain = normal.clone().requires_grad_(), split = lay_out(normal, mesh, placements).requires_grad_();
  const at::Tensor weight = seeded_normals({n}, 2);
  (std::get<0>(plain.sort()) * weight).sum().backward();
  (std::get<0>(split.sort()) * lay_out(weight, mesh, placements)).sum().backward();
  CHECK(at::equal(full_tensor(split.grad()), plain.grad()));
}

}  // namespace dtensor::testing
