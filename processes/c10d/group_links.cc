#include "processes/c10d/group_links.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/nccl.h"

namespace dtensor {

GroupLinks::GroupLinks(std::shared_ptr<Job> job, std::string backend, c10::Device device,
                       c10::intrusive_ptr<c10d::ProcessGroup> world_group)
    : job_(std::move(job)), backend_(std::move(backend)), device_(device), world_group_(std::move(world_group)) {}

Link& GroupLinks::of(const Group& group) {
  const int64_t rank = job_->rank();
  const auto& members = group.members[group.group_of[rank]];
  std::lock_guard lock(mutex_);
  auto& link = links_[members];
  if (link != nullptr && link->backend) return *link;
  link = std::make_unique<Link>();
  link->members = members;
  link->position = group.position_of[rank];
  link->key = absl::StrJoin(members, ",");
  connect(*link);
  watch(*link);
  return *link;
}

void GroupLinks::connect(Link& link) {
  const bool all = static_cast<int64_t>(link.members.size()) == job_->size() &&
                   std::is_sorted(link.members.begin(), link.members.end());
  if (all && world_group_) {
    link.backend = world_group_->getBackend(device_.type());
    return;
  }
  auto store = c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("group/", link.key), job_->store());
  const Activity activity{"making group " + link.key, 1, absl::StrCat("the making of the group of ranks ", link.key)};
  // A backend's constructor waits for all members and cannot be interrupted: see first that they are here.
  store->set(absl::StrCat("here/", link.position), std::string("1"));
  job_->wait_until(activity, link.members, [&] {
    for (size_t p = 0; p < link.members.size(); ++p) {
      if (!store->check({absl::StrCat("here/", p)})) return false;
    }
    return true;
  });
  job_->run(activity, link.members, [&]() -> c10::intrusive_ptr<c10d::Work> {
    link.backend = backend_ == "nccl" ? connect_nccl(activity, link, store) : connect_gloo(link, store);
    return {};
  });
  link.own = true;
}

c10::intrusive_ptr<c10d::Backend> GroupLinks::connect_gloo(const Link& link,
                                                           const c10::intrusive_ptr<c10d::Store>& store) {
  auto options = c10d::ProcessGroupGloo::Options::create(job_->timeout());
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(interface));
  } else if (job_->one_host()) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, static_cast<int>(link.position),
                                                     static_cast<int>(link.members.size()), options);
}

// NCCL connects the ranks in a call that cannot be interrupted, so it is made on a thread that may be left behind.
c10::intrusive_ptr<c10d::Backend> GroupLinks::connect_nccl(const Activity& activity, const Link& link,
                                                           const c10::intrusive_ptr<c10d::Store>& store) {
  std::promise<c10::intrusive_ptr<c10d::Backend>> promise;
  auto made = promise.get_future();
  std::thread([promise = std::move(promise), store = store->clone(), position = static_cast<int>(link.position),
               size = static_cast<int>(link.members.size()), device = device_, timeout = job_->timeout()]() mutable {
    try {
      promise.set_value(nccl_functions().make_backend(store, position, size, device, timeout));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  job_->wait_until(activity, link.members,
                   [&] { return made.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  return made.get();
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
      [backend = link.backend] { backend->abort(); });
}

void GroupLinks::abandon() {
  for (auto& [members, link] : links_) link->backend.release();
  world_group_.release();
}

// In an order that is the same on all ranks, as closing one waits for its members. On a thread that may be left behind:
// they may come late, and a destructor must not wait for them.
void GroupLinks::close(std::chrono::seconds at_most) {
  std::vector<std::pair<std::vector<int64_t>, c10::intrusive_ptr<c10d::Backend>>> backends;
  for (auto& [members, link] : links_) {
    if (link->own) backends.emplace_back(members, link->backend);
  }
  std::sort(backends.begin(), backends.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  try {
    std::promise<void> promise;
    const auto closed = promise.get_future();
    std::thread([promise = std::move(promise), backends = std::move(backends)]() mutable {
      for (auto& [members, backend] : backends) {
        try {
          backend->shutdown();
        } catch (const std::exception&) {
          // It is of no use any more either way.
        }
      }
      promise.set_value();
    }).detach();
    if (closed.wait_for(at_most) == std::future_status::ready) return;
  } catch (const std::exception&) {  // no thread to be had
  }
  for (auto& [members, link] : links_) link->backend.release();
}

}  // namespace dtensor
