#include "processes/c10d/group_links.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/error_message.h"
#include "comm/nccl.h"
#include "processes/c10d/call_mismatch.h"
#include "processes/job/bounded_store.h"

namespace dtensor::internal {
namespace {

constexpr std::chrono::milliseconds kAlmost{300};  // before the deadline: later failures count as timeouts

// The mesh of the tensor that the call moves: that of the side with placements; the other may describe halos or stores.
std::string mesh_text(const CommEvent& event) {
  const auto& change = event.layout_change;
  if (!change) return "";
  return change->to().placements || !change->from().placements ? change->to().where : change->from().where;
}

}  // namespace

GroupLinks::GroupLinks(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                       c10::intrusive_ptr<c10d::ProcessGroup> world_group)
    : job_(std::move(job)), backend_(std::move(backend)), device_(device), world_group_(std::move(world_group)) {}

Link& GroupLinks::of(const CommCall& call, Collective collective) {
  const RankGroups& group = *call.group;
  const int64_t rank = job_->rank();
  const auto& members = group.members[group.group_of[rank]];
  std::unique_lock lock(mutex_);
  auto& entry = links_[{group.name, members}];
  if (entry == nullptr) {
    // Members that have the group in another order meet at the same place, where they see that.
    std::vector<int64_t> set = members;
    std::sort(set.begin(), set.end());
    const std::string place = absl::StrCat("group/", group.name, "/", absl::StrJoin(set, ","));
    entry = std::make_unique<Link>();
    entry->members = members;
    entry->position = group.position_of[rank];
    entry->key = absl::StrCat(group.name, "/", absl::StrJoin(members, ","));
    entry->place = absl::StrCat(place, "/", ++made_[place]);
  }
  Link& link = *entry;
  lock.unlock();
  // Threads make their groups in an order of their own, so none may wait for another's.
  std::lock_guard making(link.making);
  if (link.backend) return link;
  connect(link, call, collective);
  watch(link);
  return link;
}

void GroupLinks::connect(Link& link, const CommCall& call, Collective collective) {
  const bool sorted = std::is_sorted(link.members.begin(), link.members.end());
  if (static_cast<int64_t>(link.members.size()) == job_->size() && sorted && world_group_) {
    link.backend = world_group_->getBackend(device_.type());
    return;
  }
  const std::string& name = call.group->name;
  const Activity activity{"making " + link.key, 1,
                          absl::StrCat("the making of the group ", name, " of ranks ", absl::StrJoin(link.members, ","),
                                       " for ", describe_collective(collective, call))};
  job_->come_to(activity);
  meet(*job_, activity, {link.place, name, mesh_text(call.event), link.members}, places_);
  auto store = c10::make_intrusive<c10d::PrefixStore>(link.place, job_->store());
  // A backend's constructor waits for all members in calls that cannot be interrupted, and may do so several times as
  // long as its deadline. So it runs on a thread that can be left behind.
  std::promise<c10::intrusive_ptr<c10d::Backend>> promise;
  auto made = promise.get_future();
  std::thread([promise = std::move(promise),
               make = backend_ == "nccl" ? nccl(link, store) : gloo(link, store)]() mutable {
    try {
      promise.set_value(make());
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  const auto until = std::chrono::steady_clock::now() + job_->timeout() - kAlmost;
  std::string error;
  job_->wait_until(activity, link.members, [&] {
    if (error.empty()) {
      if (made.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return false;
      try {
        link.backend = made.get();
        return true;
      } catch (const std::exception& e) {
        error = message_of(e);
      }
    }
    // The backend has the same deadline, but not which rank is to blame.
    if (std::chrono::steady_clock::now() >= until) return false;
    throw std::runtime_error(error);
  });
  link.own = true;
}

GroupLinks::Make GroupLinks::gloo(const Link& link, const c10::intrusive_ptr<c10d::Store>& store) {
  auto options = c10d::ProcessGroupGloo::Options::create(job_->timeout());
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (job_->one_host()) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return [=, position = static_cast<int>(link.position), size = static_cast<int>(link.members.size())] {
    return c10::intrusive_ptr<c10d::Backend>(
        c10::make_intrusive<c10d::ProcessGroupGloo>(store, position, size, options));
  };
}

GroupLinks::Make GroupLinks::nccl(const Link& link, const c10::intrusive_ptr<c10d::Store>& store) {
  return [=, position = static_cast<int>(link.position), size = static_cast<int>(link.members.size()), device = device_,
          timeout = job_->timeout()] { return nccl_functions().make_backend(store, position, size, device, timeout); };
}

// On a GPU a failure of the job aborts the group: nothing else ends a collective for which a rank is missing.
void GroupLinks::watch(const Link& link) {
  if (!device_.is_cuda()) return;
  job_->watch_group(
      link.members,
      [backend = link.backend]() -> std::string {
        const auto error = backend->getError();
        if (error == c10d::ErrorType::SUCCESS) return "";
        return error == c10d::ErrorType::TIMEOUT ? "NCCL's watchdog has timed out"
                                                 : "NCCL has lost the connection of the group";
      },
      [backend = link.backend] { backend->abort(); }, [device = device_] { nccl_functions().prepare_watch(device); });
}

std::vector<GroupCalls> GroupLinks::calls() {
  std::vector<GroupCalls> all;
  std::lock_guard lock(mutex_);
  for (auto& [key, link] : links_) {
    std::lock_guard numbering(link->numbering);
    if (link->members.size() > 1 && link->calls > 0) all.push_back({link->key, key.first, link->members, link->calls});
  }
  return all;
}

void GroupLinks::abandon() {
  for (auto& [key, link] : links_) link->backend.release();
  world_group_.release();
}

// In an order that is the same on all ranks, as closing one waits for its members. On a thread that may be left behind:
// they may come late, and a destructor must not wait for them.
void GroupLinks::close(std::chrono::seconds at_most) {
  std::vector<std::pair<std::pair<std::string, std::vector<int64_t>>, c10::intrusive_ptr<c10d::Backend>>> backends;
  for (auto& [key, link] : links_) {
    if (link->own) backends.emplace_back(key, link->backend);
  }
  std::sort(backends.begin(), backends.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  try {
    std::promise<void> promise;
    const auto closed = promise.get_future();
    std::thread([promise = std::move(promise), backends = std::move(backends)]() mutable {
      for (auto& [key, backend] : backends) {
        try {
          backend->shutdown();
        } catch (const std::exception&) {
          // It cannot be used any more in either case.
        }
      }
      promise.set_value();
    }).detach();
    if (closed.wait_for(at_most) == std::future_status::ready) return;
  } catch (const std::exception&) {  // no thread to be had
  }
  for (auto& [key, link] : links_) link->backend.release();
}

}  // namespace dtensor::internal
