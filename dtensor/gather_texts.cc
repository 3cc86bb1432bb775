#include "dtensor/gather_texts.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "comm/communicator.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// `size` bytes from every rank to every rank, of which the first are `data`.
Pieces all_gather(const DeviceMesh& mesh, std::string data, int64_t size, std::string_view op) {
  data.resize(size);
  at::Tensor mine = at::empty({size}, at::TensorOptions().dtype(at::kByte));
  if (size > 0) std::memcpy(mine.mutable_data_ptr(), data.data(), size);
  const World& world = mesh.world();
  CommCall call;
  call.group = &mesh.get_group(0);
  call.ranks = mesh.local_ranks();
  call.event.cause = {std::string(op), "", "", /*implicit=*/false};
  call.event.dtype = c10::ScalarType::Byte;
  call.event.bytes = size * (mesh.size() - 1);
  Pieces all = world.communicator().all_gather(call, {mine.to(world.device(mesh.local_ranks().at(0)))}).at(0);
  for (at::Tensor& t : all) t = t.cpu();
  return all;
}

}  // namespace

DeviceMesh ranks_of(const World& world) {
  if (!world.defined() || world.kind() != World::Kind::kProcesses || world.size() == 1) return {};
  return DeviceMesh(world, {world.size()}, {"all"});
}

std::vector<std::string> gather_texts(const DeviceMesh& ranks, const std::string& mine, std::string_view op) {
  if (!ranks.defined()) return {mine};
  LocalGuard guard;
  // All ranks pass as much: a collective is compared between them by its sizes.
  const int64_t length = static_cast<int64_t>(mine.size());
  std::vector<int64_t> lengths;
  for (const at::Tensor& t :
       all_gather(ranks, {reinterpret_cast<const char*>(&length), sizeof length}, sizeof length, op))
    std::memcpy(&lengths.emplace_back(), t.const_data_ptr(), sizeof length);
  std::vector<std::string> texts;
  for (const at::Tensor& t : all_gather(ranks, mine, *std::max_element(lengths.begin(), lengths.end()), op))
    texts.emplace_back(static_cast<const char*>(t.const_data_ptr()), lengths[texts.size()]);
  return texts;
}

}  // namespace dtensor::internal
