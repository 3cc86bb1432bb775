#include "checkpoint/one_writer.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>

#include "comm/communicator.h"
#include "comm/scope.h"
#include "dtensor/extend/representation.h"
#include "mesh/device_mesh.h"

namespace dtensor {
namespace {

constexpr int64_t kReportBytes = 1024;
// How long the writer works before it tells that it is still there: far below any deadline.
constexpr std::chrono::milliseconds kPatience(200);

enum class State : char { kWorking, kDone, kFailed };
struct Report {
  State state = State::kDone;
  std::string error;  // cut to what a report holds
};

// All ranks that hold a part, as one dim; undefined if all are in this process. Of several meshes the largest: what
// this process has no part of cannot be gathered here anyway.
DeviceMesh writers_mesh(const std::vector<at::Tensor>& tensors) {
  DeviceMesh largest;
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || !is_dtensor(t)) continue;
    const DeviceMesh& mesh = spec_of(t)->mesh();
    if (mesh.world().kind() != World::Kind::kProcesses) continue;
    if (!largest.defined() || mesh.ranks().size() > largest.ranks().size()) largest = mesh;
  }
  if (!largest.defined() || largest.ranks().size() == 1) return {};
  std::vector<int64_t> ranks = largest.ranks();
  std::sort(ranks.begin(), ranks.end());
  const auto n = static_cast<int64_t>(ranks.size());
  return DeviceMesh(largest.world(), {n}, {"save"}, std::move(ranks));
}

// Everybody's reports, in the order of the ranks.
std::vector<Report> exchange_reports(const DeviceMesh& mesh, const Report& mine) {
  LocalGuard guard;
  CommCall call;
  call.group = &mesh.get_group(0);
  call.ranks = mesh.local_ranks();
  call.event.cause = CommCause{"save", "", current_scope().module_path, /*implicit=*/false};
  call.event.dtype = c10::ScalarType::Byte;
  call.event.bytes = kReportBytes * (call.group->size - 1);
  at::Tensor bytes = at::empty({kReportBytes}, at::TensorOptions().dtype(at::kByte));
  char* data = static_cast<char*>(bytes.mutable_data_ptr());
  std::memset(data, 0, kReportBytes);
  data[0] = static_cast<char>(mine.state);
  std::memcpy(data + 1, mine.error.data(), std::min<size_t>(mine.error.size(), kReportBytes - 2));
  const auto all = mesh.world().communicator().all_gather(call, {bytes.to(mesh.world().device(call.ranks[0]))});
  std::vector<Report> reports;
  for (const at::Tensor& t : all[0]) {
    const at::Tensor received = t.cpu();
    const char* r = static_cast<const char*>(received.const_data_ptr());
    reports.push_back({static_cast<State>(r[0]), std::string(r + 1, strnlen(r + 1, kReportBytes - 1))});
  }
  return reports;
}

Report report_of(const std::function<void()>& work) {
  try {
    work();
    return {State::kDone, ""};
  } catch (const c10::Error& e) {
    return {State::kFailed, e.what_without_backtrace()};
  } catch (const std::exception& e) {
    return {State::kFailed, e.what()};
  } catch (...) {
    return {State::kFailed, "it threw what is no std::exception"};
  }
}

}  // namespace

void write_once(const std::vector<at::Tensor>& tensors, const std::string& path, const std::function<void()>& prepare,
                const std::function<void()>& write) {
  const DeviceMesh mesh = writers_mesh(tensors);
  if (!mesh.defined()) {
    prepare();
    write();
    return;
  }
  Report mine = report_of(prepare);
  std::future<Report> writing;
  if (mine.state == State::kDone && mesh.local_ranks()[0] == mesh.ranks()[0]) {
    // An error here is that the system has no thread left.
    mine = report_of([&] { writing = std::async(std::launch::async, [&write] { return report_of(write); }); });
    if (mine.state == State::kDone) mine.state = State::kWorking;
  }
  for (;;) {
    if (mine.state == State::kWorking && writing.wait_for(kPatience) == std::future_status::ready) mine = writing.get();
    const std::vector<Report> all = exchange_reports(mesh, mine);
    const auto working = [](const Report& r) { return r.state == State::kWorking; };
    if (std::any_of(all.begin(), all.end(), working)) continue;
    for (size_t i = 0; i < all.size(); ++i) {
      TORCH_CHECK(all[i].state == State::kDone, "[save] '", path, "' could not be stored: rank ", mesh.ranks()[i], ": ",
                  all[i].error);
    }
    return;
  }
}

}  // namespace dtensor
