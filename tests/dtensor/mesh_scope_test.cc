// Tensors made inside a MeshScope: by empty(), by torch::tensor(), by operators on plain tensors, by modules.
#include <torch/nn.h>
#include <torch/optim/adam.h>
#include <torch/serialize.h>

#include <numeric>
#include <sstream>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/forbid_whole_gather.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using Catch::Contains;
using torch::Tensor;

const DeviceMesh& four_ranks() {
  static const DeviceMesh m(World::local(4), {4}, {"x"});
  return m;
}

Tensor sharded_by_four(const Tensor& t) { return distribute_tensor(t, four_ranks(), {Shard(0)}); }

bool is_replicated(const Tensor& t) { return is_dtensor(t) && DTensor(t).placements() == Placements{Replicate()}; }

}  // namespace

TEST_CASE("MeshScope: empty, empty_strided and the like make replicated tensors", "[dtensor]") {
  const MeshScope scope(four_ranks());
  CHECK(is_replicated(torch::empty({2, 3})));
  CHECK_FALSE(is_dtensor(at::empty({2, 3})));
  CHECK(is_replicated(torch::empty_strided({2, 3}, {1, 2})));
  CHECK(torch::empty_strided({2, 3}, {1, 2}).strides() == at::IntArrayRef({1, 2}));
  const Tensor made = torch::empty({2, 3, 4, 5}, torch::kDouble, torch::MemoryFormat::ChannelsLast);
  CHECK(made.is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(DTensor(made).local(3).is_contiguous(torch::MemoryFormat::ChannelsLast));
  CHECK(is_replicated(torch::empty_like(made)));
  CHECK(is_replicated(made.new_empty({7})));
  CHECK(torch::empty({2}, torch::requires_grad()).requires_grad());
  CHECK_FALSE(is_dtensor(torch::empty({2}, torch::kMeta)));
  CHECK_FALSE(is_dtensor(torch::empty({2}, torch::kSparse)));
  const c10::InferenceMode inference;
  CHECK(is_replicated(torch::empty({2})));
}

TEST_CASE("MeshScope: an empty tensor can be drawn into, written by slices or used as out=", "[dtensor]") {
  const Tensor x = torch::arange(12, torch::kDouble).view({4, 3});
  const Tensor d = sharded_by_four(x);
  const MeshScope scope(four_ranks());
  const Tensor noise = torch::empty({16}).normal_();  // as Normal.rsample draws it
  for (int64_t r = 1; r < 4; ++r) CHECK(torch::equal(DTensor(noise).local(0), DTensor(noise).local(r)));
  Tensor rows = torch::empty({4, 3}, torch::kDouble);
  for (int64_t i = 0; i < 4; ++i) rows[i] = d[i] * 2;
  CHECK(torch::equal(full_tensor(rows), x * 2));
  Tensor sum = torch::empty({0}, torch::kDouble);
  torch::sum_out(sum, d, {0});
  CHECK(torch::equal(full_tensor(sum), x.sum(0)));
}

TEST_CASE("MeshScope: torch::tensor stays plain with the right values", "[dtensor]") {
  std::vector<float> many(300);
  std::iota(many.begin(), many.end(), 0.f);
  const MeshScope scope(four_ranks());
  for (const bool inference : {false, true}) {
    const c10::InferenceMode mode(inference);
    const Tensor list = torch::tensor({{1, 2}, {3, 4}}), vector = torch::tensor(many);
    CHECK_FALSE(is_dtensor(list));
    CHECK_FALSE(is_dtensor(vector));
    CHECK(list.sum().item<int64_t>() == 10);
    CHECK(vector.data_ptr<float>()[299] == 299);
  }
}

TEST_CASE("MeshScope: data_ptr of an empty tensor is an error that names PlainFactories", "[dtensor]") {
  const MeshScope scope(four_ranks());
  CHECK_THAT(testing::error_text([] { torch::empty({3}).data_ptr<float>(); }),
             Contains("PlainFactories") && Contains("distribute_tensor()"));
  CHECK_THAT(testing::error_text([] { sharded_by_four(torch::ones({4})).data_ptr<float>(); }),
             !Contains("PlainFactories"));
  Tensor filled;
  {
    const PlainFactories plain;
    filled = torch::empty({3});
    std::fill_n(filled.data_ptr<float>(), 3, 5.f);
  }
  CHECK_FALSE(is_dtensor(filled));
  CHECK(is_replicated(torch::empty({3})));
  CHECK(full_tensor(distribute_tensor(filled, four_ranks())).sum().item<float>() == 15);
}

TEST_CASE("MeshScope: results of operators on plain tensors are plain and right", "[dtensor]") {
  const Tensor ids = torch::arange(6) % 3, x = torch::rand({2, 3, 4}), q = torch::rand({1, 2, 4, 4});
  const auto all = [&] {
    const auto norm = torch::batch_norm(x, {}, {}, {}, {}, /*training=*/true, 0.1, 1e-5, false);
    return std::vector<Tensor>{
        torch::one_hot(ids, 4),
        norm,
        torch::quantile(x, 0.3, 1),
        torch::scaled_dot_product_attention(q, q, q, {}, 0., true),
        torch::cov(x[0]),
        torch::nn::functional::interpolate(
            x, torch::nn::functional::InterpolateFuncOptions().size(std::vector<int64_t>{7}).mode(torch::kNearest))};
  };
  const auto expected = all();
  const MeshScope scope(four_ranks());
  const auto made = all();
  for (size_t i = 0; i < made.size(); ++i) {
    CAPTURE(i);
    CHECK_FALSE(is_dtensor(made[i]));
    CHECK(torch::equal(made[i], expected[i]));
  }
}

TEST_CASE("MeshScope: operators on distributed tensors compute the same as outside", "[dtensor]") {
  const auto numbers = [](at::IntArrayRef shape) {
    return (torch::arange(c10::multiply_integers(shape), torch::kDouble).view(shape) * 0.7).sin();
  };
  const Tensor x = numbers({8, 6}), image = numbers({4, 3, 6, 6}), kernel = numbers({2, 3, 3, 3});
  const auto all = [](const Tensor& x, const Tensor& image, const Tensor& kernel) {
    return std::vector<Tensor>{std::get<0>(x.sort(0)),
                               std::get<0>(torch::linalg_qr(x)),
                               x.roll(1, 0),
                               torch::conv2d(image, kernel, {}, 1, 1),
                               torch::max_pool2d(image, 2),
                               x.cumsum(0),
                               torch::softmax(x, 0),
                               torch::var(x, 0),
                               torch::logsumexp(x, 0),
                               torch::instance_norm(image, {}, {}, {}, {}, true, 0.1, 1e-5, false)};
  };
  const auto expected = all(x, image, kernel);
  const MeshScope scope(four_ranks());
  const auto got = all(sharded_by_four(x), sharded_by_four(image), distribute_tensor(kernel, four_ranks()));
  for (size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i);
    CHECK(torch::allclose(full_tensor(got[i]), expected[i], 1e-10, 1e-12));
  }
}

TEST_CASE("MeshScope: a module made inside can be distributed like one made outside", "[dtensor]") {
  const auto cut = [](const std::string&, torch::nn::Module& m, const DeviceMesh& on) {
    shard_parameter(m, "weight", on, {Shard(0)});
  };
  torch::nn::Linear inside{nullptr};
  {
    const MeshScope scope(four_ranks());
    inside = torch::nn::Linear(3, 8);
  }
  CHECK(is_replicated(inside->weight));
  CHECK(inside->weight.requires_grad());
  torch::nn::Linear outside(3, 8);
  outside->weight.set_data(full_tensor(inside->weight).detach().clone());
  outside->bias.set_data(full_tensor(inside->bias).detach().clone());
  distribute_module(*inside, four_ranks(), cut);
  CHECK(DTensor(inside->weight).placements() == Placements{Shard(0)});
  CHECK(DTensor(inside->weight).local(1).sizes() == at::IntArrayRef({2, 3}));
  CHECK(is_replicated(inside->bias));
  CHECK_THAT(testing::error_text([&] { distribute_module(*inside, four_ranks()); }), Contains("distributed already"));

  const Tensor x = torch::ones({4, 3});
  torch::optim::Adam a(inside->parameters(), 0.1), b(outside->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    a.zero_grad(), b.zero_grad();
    const Tensor y = inside(sharded_by_four(x)).pow(2).sum(), z = outside(x).pow(2).sum();
    CHECK(torch::allclose(full_tensor(y), z, 1e-4, 1e-5));
    y.backward(), z.backward();
    a.step(), b.step();
  }
}

TEST_CASE("MeshScope: files are read as outside", "[dtensor]") {
  std::stringstream file;
  torch::save(torch::arange(4), file);
  const MeshScope scope(four_ranks());
  Tensor read;
  torch::load(read, file);
  CHECK_FALSE(is_dtensor(read));
  CHECK(read.sum().item<int64_t>() == 6);
}

TEST_CASE("ForbidWholeGather: an operator that needs a whole matrix fails with the size of the gather", "[dtensor]") {
  const Tensor a = torch::eye(8, torch::kDouble) * 3, b = torch::ones({8, 2}, torch::kDouble);
  const Tensor split = sharded_by_four(a), rhs = distribute_tensor(b, four_ranks());
  const Tensor sum = distribute_tensor(torch::ones({8, 8}, torch::kDouble), four_ranks(), {Partial()});
  CommDebugMode comm;
  {
    const ForbidWholeGather guard(511);
    const ModulePath running("solver");
    const std::string text = testing::error_text([&] { torch::linalg_solve(split, rhs); });
    CHECK_THAT(text, Contains("aten::_linalg_solve_ex: argument 'A'") && Contains("512 bytes") &&
                         Contains("f64[8, 8](S(0)) -> (R) @ mesh(x=4)") && Contains("in module 'solver'") &&
                         Contains("ForbidWholeGather allows 511 bytes"));
    CHECK_THROWS(torch::linalg_cholesky(split));
    CHECK_THROWS(torch::linalg_eigh(split));
    CHECK_THROWS(torch::linalg_inv(split));
    CHECK(comm.total() == 0);
    CHECK_NOTHROW(redistribute(split, {Replicate()}));  // explicit gathers are allowed
    CHECK_NOTHROW(redistribute(split, {Shard(1)}));
    CHECK_NOTHROW(sum.relu());  // a reduction
    const ReplicateUnsupported gathers;
    CHECK_THROWS_WITH(torch::hash_tensor(split, {}), Contains("aten::hash_tensor") && Contains("512 bytes"));
  }
  {
    const ForbidWholeGather larger(512);
    CHECK(torch::allclose(full_tensor(torch::linalg_solve(split, rhs)), b / 3));
    const ForbidWholeGather none;  // the smallest limit applies
    CHECK_THROWS_WITH(torch::linalg_inv(sharded_by_four(a * 2)), Contains("allows 0 bytes"));
  }
  CHECK_NOTHROW(torch::linalg_inv(sharded_by_four(a * 2)));
  CHECK_THROWS_WITH(ForbidWholeGather(-1), Contains("max_bytes is -1"));
}

}  // namespace dtensor
