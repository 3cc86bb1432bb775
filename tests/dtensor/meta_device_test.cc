// Models that are laid out on the device "meta" before any rank allocates its part.
#include "dtensor/meta_device.h"

#include <torch/nn.h>
#include <torch/optim/adam.h>

#include <memory>
#include <string>
#include <vector>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "mesh/memory_meter.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using torch::Tensor;

struct Net : torch::nn::Module {
  explicit Net(int64_t width = 6)
      : table(register_module("table", torch::nn::Embedding(5, width))),
        up(register_module("up", torch::nn::Linear(width, 4 * width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4 * width))),
        down(register_module("down", torch::nn::Linear(torch::nn::LinearOptions(4 * width, width).bias(false)))) {}

  Tensor forward(const Tensor& ids) { return down(torch::relu(norm(up(table(ids))))); }

  torch::nn::Embedding table;
  torch::nn::Linear up;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear down;
};

Placements over_last(const DeviceMesh& mesh, const Placement& p) {
  Placements placements(mesh.ndim(), Replicate());
  placements.back() = p;
  return placements;
}

void shard(const std::string& path, torch::nn::Module& module, const DeviceMesh& mesh) {
  if (path == "table" || path == "up") shard_parameter(module, "weight", mesh, over_last(mesh, Shard(0)));
  if (path == "up") shard_parameter(module, "bias", mesh, over_last(mesh, Shard(0)));
  if (path == "down") shard_parameter(module, "weight", mesh, over_last(mesh, Shard(1)));
}

void fill(torch::nn::Module& module) {
  torch::manual_seed(7);
  const torch::NoGradGuard no_grad;
  for (const auto& p : module.named_parameters()) torch::nn::init::normal_(p.value(), 0, 0.3);
  for (const auto& b : module.named_buffers()) b.value().fill_(1);
}

std::shared_ptr<Net> on_meta(const DeviceMesh& mesh, int64_t width = 6) {
  const MeshScope shapes(mesh.meta());
  return std::make_shared<Net>(width);
}

std::shared_ptr<Net> deferred(const DeviceMesh& mesh) {
  auto net = on_meta(mesh);
  distribute_module(*net, mesh, shard);
  to_empty(*net);
  fill(*net);
  return net;
}

TEST_CASE("meta: a world and a mesh have a counterpart without data", "[dtensor][meta]") {
  const World world = World::local(4);
  const DeviceMesh mesh(world, {2, 2}, {"dp", "tp"}), meta = mesh.meta();
  CHECK(meta != mesh);
  CHECK(meta.with_data() == mesh);
  CHECK(meta.meta() == meta);
  CHECK(mesh.with_data() == mesh);
  CHECK(mesh.meta() == meta);
  CHECK(meta.to_string() == "mesh(dp=2, tp=2)");
  CHECK(meta.world() == world.meta());
  CHECK(meta.world().is_meta());
  CHECK_FALSE(world.is_meta());
  CHECK_FALSE(meta.world().has_data());
  CHECK(meta.world().size() == 4);
  CHECK(meta.world().name() == "meta of " + world.name());
  CHECK(mesh["tp"].meta() == meta["tp"]);
  CHECK(meta["tp"].with_data() == mesh["tp"]);
  CHECK(meta.local_ranks().empty());
}

TEST_CASE("meta: a module has shapes and layouts before it has memory", "[dtensor][meta]") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  CommDebugMode comm;
  const auto net = on_meta(mesh, 1 << 20);  // tens of terabytes
  distribute_module(*net, mesh, shard);
  CHECK(comm.total() == 0);
  CHECK(mesh.world().memory().peak_bytes() < 1 << 10);
  for (const auto& p : net->named_parameters()) {
    CAPTURE(p.key());
    CHECK(is_dtensor(p.value()));
    CHECK(p.value().is_meta());
    CHECK(p.value().requires_grad());
    CHECK(DTensor(p.value()).mesh() == mesh.meta());
  }
  CHECK(to_string(DTensor(net->up->weight).placements()) == "RS(0)");
  CHECK(net->up->weight.sizes() == at::IntArrayRef({4 << 20, 1 << 20}));
  // The same decisions as with data.
  const auto ids = zeros({8}, mesh.meta(), {Shard(0), Replicate()}, {.dtype = torch::kLong});
  const Tensor y = net->forward(ids);
  CHECK(y.is_meta());
  CHECK(y.sizes() == at::IntArrayRef({8, 1 << 20}));
  y.sum().backward();
  CHECK(net->up->weight.grad().is_meta());
  CHECK(DTensor(net->up->weight.grad()).placements() == DTensor(net->up->weight).placements());
  CHECK_THAT(testing::error_text([&] { y.sum().item(); }), !Catch::Equals(""));
  CHECK_THAT(testing::error_text([&] { y.cpu(); }),
             Catch::Contains("Cannot copy out of meta tensor") && Catch::Contains("to_empty"));
}

TEST_CASE("meta: values depend neither on the mesh nor on a meta stage", "[dtensor][meta]") {
  const DeviceMesh one(World::local(1), {1});
  Net direct;
  distribute_module(direct, one);
  fill(direct);
  const auto expected = direct.named_parameters();
  const auto ids = torch::tensor({0, 4, 2, 3});
  const auto output = [&](Net& net, const DeviceMesh& mesh) {
    return full_tensor(net.forward(distribute_tensor(ids, mesh))).detach();
  };
  for (const DeviceMesh& mesh :
       {DeviceMesh(World::local(1), {1}), DeviceMesh(World::local(3), {3}), DeviceMesh(World::local(4), {2, 2})}) {
    CAPTURE(mesh.to_string());
    const auto net = deferred(mesh);
    for (const auto& p : net->named_parameters()) {
      CAPTURE(p.key());
      CHECK_FALSE(p.value().is_meta());
      CHECK(DTensor(p.value()).mesh() == mesh);
      CHECK(torch::equal(full_tensor(p.value()), full_tensor(expected[p.key()])));
    }
    CHECK(torch::allclose(output(*net, mesh), output(direct, one), 1e-4, 1e-5));
  }
}

TEST_CASE("meta: to_empty allocates each rank's part, and keeps the tensors' identity", "[dtensor][meta]") {
  const DeviceMesh mesh(World::local(4), {4});
  const auto net = on_meta(mesh);
  distribute_module(*net, mesh, shard);
  const Tensor weight = net->up->weight, bias = net->up->bias;
  torch::optim::Adam optimizer(net->parameters(), 0.1);
  const void* impl = weight.unsafeGetTensorImpl();
  to_empty(*net);
  CHECK(net->up->weight.unsafeGetTensorImpl() == impl);
  CHECK(DTensor(weight).local(0).sizes() == at::IntArrayRef({6, 6}));
  CHECK(DTensor(weight).placements() == Placements{Shard(0)});
  CHECK(weight.is_leaf());
  CHECK(weight.requires_grad());
  fill(*net);
  to_empty(*net);  // no tensor is on "meta" any more
  const auto before = full_tensor(weight).detach().clone();
  net->forward(distribute_tensor(torch::tensor({1, 2, 3, 4}), mesh)).sum().backward();
  optimizer.step();
  CHECK_FALSE(torch::equal(full_tensor(weight).detach(), before));
  // Reports contain the parameter's path.
  CommDebugMode comm;
  redistribute(weight, {Replicate()});
  CHECK(comm.total() == 1);
}

struct Tied : torch::nn::Module {
  Tied()
      : table(register_module("table", torch::nn::Embedding(8, 4))),
        head(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(4, 8).bias(false)))) {
    head->weight.set_data(table->weight.detach());
  }
  torch::nn::Embedding table;
  torch::nn::Linear head;
};

TEST_CASE("meta: tied parameters stay tied", "[dtensor][meta]") {
  const DeviceMesh mesh(World::local(2), {2});
  std::shared_ptr<Tied> net;
  {
    const MeshScope shapes(mesh.meta());
    net = std::make_shared<Tied>();
  }
  to_empty(*net);
  const torch::NoGradGuard no_grad;
  net->table->weight.fill_(3);
  CHECK(torch::equal(full_tensor(net->head->weight), torch::full({8, 4}, 3.0)));
}

TEST_CASE("meta: distribute_tensor, from_local, to_local, factories and moves", "[dtensor][meta]") {
  const DeviceMesh mesh(World::local(3), {3});
  const auto meta = torch::TensorOptions(torch::kMeta);
  const Tensor x = distribute_tensor(torch::empty({7, 2}, meta.dtype(torch::kHalf)).requires_grad_(), mesh, {Shard(0)});
  CHECK(x.is_meta());
  CHECK(x.requires_grad());
  CHECK(x.scalar_type() == torch::kHalf);
  CHECK(DTensor(x).mesh() == mesh.meta());
  CHECK(DTensor(x).placements() == Placements{Shard(0)});
  const auto parts = to_local(x);
  REQUIRE(parts.size() == 3);
  CHECK(parts[0].is_meta());
  CHECK(parts[0].sizes() == at::IntArrayRef({3, 2}));
  CHECK(parts[2].sizes() == at::IntArrayRef({1, 2}));
  const Tensor whole = full_tensor(x);
  CHECK(whole.is_meta());
  CHECK(whole.sizes() == x.sizes());

  const Tensor joined = from_local(parts, mesh, {Shard(0)});
  CHECK(joined.is_meta());
  CHECK(joined.sizes() == x.sizes());
  CHECK(DTensor(redistribute(joined, {Replicate()})).placements() == Placements{Replicate()});
  CHECK_THAT(testing::error_text([&] {
               from_local({parts[0], torch::zeros({3, 2}, torch::kHalf), parts[2]}, mesh, {Shard(0)});
             }),
             Catch::Contains("all must have data, or none"));

  const Tensor data = rand({4, 4}, mesh, {Shard(1)});
  const Tensor moved = data.to(torch::kMeta);
  CHECK(moved.is_meta());
  CHECK(DTensor(moved).placements() == Placements{Shard(1)});
  CHECK(to_meta(data).is_meta());
  CHECK(torch::zeros_like(moved, moved.options()).is_meta());
  CHECK(empty({4}, mesh.meta(), {Shard(0)}).is_meta());
  CHECK_THROWS(data + moved);  // one has values

  const MeshScope shapes(mesh.meta());
  CHECK(torch::empty({3}).is_meta());
  CHECK(is_dtensor(torch::empty({3})));
  CHECK(is_dtensor(torch::rand({3}, moved.options())));
}

TEST_CASE("meta: to_empty of a plain module on meta is an error with a remedy", "[dtensor][meta]") {
  const DeviceMesh mesh(World::local(2), {2});
  torch::nn::Module net;
  net.register_parameter("w", torch::empty({4}, torch::kMeta));
  CHECK_THAT(testing::error_text([&] { distribute_module(net, mesh); }),
             Catch::Contains("'w'") && Catch::Contains("MeshScope(mesh.meta())"));
  CHECK_THAT(testing::error_text([&] { to_empty(net); }),
             Catch::Contains("'w'") && Catch::Contains("MeshScope(mesh.meta())"));
}

TEST_CASE("from_local: strides are those of the whole", "[dtensor][meta]") {
  for (const int64_t ranks : {1, 2, 3}) {
    const DeviceMesh mesh(World::local(ranks), {ranks});
    const Tensor whole = torch::rand({4, 5, 2}).permute({2, 0, 1});  // 2 x 4 x 5, strides 1, 10, 2
    for (const int64_t dim : {0, 1, 2}) {
      const int64_t chunk = (whole.size(dim) + ranks - 1) / ranks;
      std::vector<Tensor> parts;
      for (int64_t r = 0; r < ranks; ++r) {
        const int64_t begin = std::min(r * chunk, whole.size(dim)), end = std::min(begin + chunk, whole.size(dim));
        parts.push_back(whole.narrow(dim, begin, end - begin).permute({1, 2, 0}).contiguous().permute({2, 0, 1}));
      }
      CAPTURE(ranks, dim);
      const Tensor x = from_local(parts, mesh, {Shard(dim)});
      CHECK(x.strides() == whole.strides());
      CHECK(torch::equal(full_tensor(x), whole));
      CHECK((x * 2).strides() == whole.strides());
    }
  }
  const DeviceMesh six(World::local(6), {2, 3});
  const std::vector<Tensor> columns_of_one(6, torch::rand({5, 1}));  // in any order
  CHECK(from_local(columns_of_one, six, {Shard(1), Shard(1)}).is_contiguous());
  const DeviceMesh mesh(World::local(2), {2});
  const auto rows = torch::rand({2, 3}), columns = torch::rand({3, 2}).t();
  CHECK(from_local({rows, columns}, mesh, {Shard(0)}).is_contiguous());  // their orders differ
  FromLocalOptions options;
  options.strides = std::vector<int64_t>{1, 4};
  CHECK(from_local({rows, rows.clone()}, mesh, {Shard(0)}, options).strides() == at::IntArrayRef({1, 4}));
}

}  // namespace
}  // namespace dtensor
