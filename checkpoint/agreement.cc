#include "checkpoint/agreement.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>

#include "comm/communicator.h"
#include "comm/error_message.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// `size` bytes from every rank to every rank, of which the first are `data`.
std::vector<at::Tensor> all_gather(const DeviceMesh& mesh, std::string data, int64_t size, std::string_view op) {
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
  std::vector<at::Tensor> all =
      world.communicator().all_gather(call, {mine.to(world.device(mesh.local_ranks().at(0)))}).at(0);
  for (at::Tensor& t : all) t = t.cpu();
  return all;
}

// How long a process works before it reports that it still does: far below any deadline.
constexpr std::chrono::milliseconds kPatience(200);
const char* const kWorking = "\x01working";

std::string first_of(const DeviceMesh& ranks, const std::vector<std::string>& errors) {
  for (size_t i = 0; i < errors.size(); ++i) {
    if (!errors[i].empty()) return (ranks.defined() ? c10::str("rank ", ranks.ranks()[i], ": ") : "") + errors[i];
  }
  return "";
}

// The error's text; "" if there is none.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& e) {
    return message_of(e);
  } catch (...) {
    return "something was thrown that is no std::exception";
  }
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

void agree_that_all_is_well(const DeviceMesh& ranks, const std::string& error, std::string_view op) {
  const std::string first = first_of(ranks, gather_texts(ranks, error, op));
  TORCH_CHECK(first.empty(), first);
}

std::string run_on_all(const DeviceMesh& ranks, const std::function<void()>& work, std::string_view op) {
  if (!ranks.defined()) return error_of(work);
  std::future<std::string> running;
  std::optional<std::string> error;  // when it is over
  try {
    running = std::async(std::launch::async, [&work] { return error_of(work); });
  } catch (const std::exception& e) {  // no thread to be had
    error = message_of(e);
  }
  for (;;) {
    if (!error && running.wait_for(kPatience) == std::future_status::ready) error = running.get();
    const std::vector<std::string> all = gather_texts(ranks, error ? *error : kWorking, op);
    if (std::find(all.begin(), all.end(), kWorking) == all.end()) return first_of(ranks, all);
  }
}

}  // namespace dtensor::internal
