// Channels-last tensors: the strides of the whole and of the parts agree.
#include <torch/nn.h>

#include "dtensor/distribute_module.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
namespace {

using torch::Tensor;

// The parts' dims have the memory order of the whole's.
void check_parts_lie_as_whole(const Tensor& t, torch::MemoryFormat format) {
  CHECK(t.is_contiguous(format));
  CHECK(t.suggest_memory_format() == format);
  for (const Tensor& part : to_local(t)) CHECK((part.numel() == 0 || part.is_contiguous(format)));
}

}  // namespace

TEST_CASE("memory format: distribute_tensor keeps channels-last in every layout", "[dtensor]") {
  for (const DeviceMesh& mesh : {DeviceMesh(World::local(1), {1}), DeviceMesh(World::local(3), {3})}) {
    for (const auto format : {torch::MemoryFormat::ChannelsLast, torch::MemoryFormat::ChannelsLast3d}) {
      const bool three = format == torch::MemoryFormat::ChannelsLast3d;
      const Tensor x = (three ? torch::rand({4, 5, 2, 3, 4}) : torch::rand({4, 5, 3, 4})).contiguous(format);
      for (const Placement& p : {Shard(0), Shard(1), Shard(3), Replicate(), Partial()}) {
        for (const std::optional<int64_t> source : {std::optional<int64_t>(0), std::optional<int64_t>()}) {
          CAPTURE(to_string(p), mesh.size(), three, source.has_value());
          const Tensor d = distribute_tensor(x, mesh, {p}, source);
          check_parts_lie_as_whole(d, format);
          CHECK(torch::equal(full_tensor(d), x));
          CHECK((d * 2).strides() == x.strides());
          check_parts_lie_as_whole(d * 2, format);
        }
      }
    }
  }
}

TEST_CASE("memory format: other tensors become row-major, parts and whole", "[dtensor]") {
  for (const int64_t ranks : {1, 2}) {
    const DeviceMesh mesh(World::local(ranks), {ranks});
    for (const std::optional<int64_t> source : {std::optional<int64_t>(0), std::optional<int64_t>()}) {
      const Tensor x = torch::rand({4, 6}).t();
      const Tensor d = distribute_tensor(x, mesh, {Replicate()}, source);
      check_parts_lie_as_whole(d, torch::MemoryFormat::Contiguous);
      CHECK(torch::equal(full_tensor(d), x));
    }
  }
}

TEST_CASE("memory format: a channels-last convolution runs channels-last on the parts, with one device's strides",
          "[dtensor]") {
  torch::manual_seed(3);
  const DeviceMesh mesh(World::local(2), {2});
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 4, 3).padding(1));
  conv->to(torch::kDouble);
  conv->weight.set_data(conv->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
  const Tensor x = torch::rand({4, 3, 6, 6}, torch::kDouble).contiguous(torch::MemoryFormat::ChannelsLast);
  const Tensor expected = conv(x);
  distribute_module(*conv, mesh);
  check_parts_lie_as_whole(conv->weight.detach(), torch::MemoryFormat::ChannelsLast);
  const Tensor y = conv(distribute_tensor(x, mesh, {Shard(0)}));
  CHECK(y.strides() == expected.strides());
  check_parts_lie_as_whole(y.detach(), torch::MemoryFormat::ChannelsLast);
  CHECK(torch::allclose(full_tensor(y), expected));
}

TEST_CASE("memory format: from_local keeps the format of its parts", "[dtensor]") {
  const DeviceMesh mesh(World::local(2), {2});
  const auto part = [] { return torch::rand({2, 3, 4, 5}).contiguous(torch::MemoryFormat::ChannelsLast); };
  for (const Placement& p : {Shard(0), Shard(1), Shard(2), Partial()}) {
    CAPTURE(to_string(p));
    check_parts_lie_as_whole(from_local({part(), part()}, mesh, {p}), torch::MemoryFormat::ChannelsLast);
  }
}

}  // namespace dtensor
