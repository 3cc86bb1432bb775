// The groups of one rank and the backends that connect them, each made when its ranks first communicate.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "comm/comm_call.h"
#include "processes/c10d/call_order.h"
#include "processes/c10d/group_meeting.h"
#include "processes/c10d/moved_tensors.h"
#include "processes/job/job.h"
#include "processes/job/job_end.h"

namespace dtensor::internal {

// The histories of all members at one call, on their way from the device.
struct Comparison {
  int64_t call = 0;
  std::string what;  // this rank says of its own
  at::Tensor values;
  std::function<bool()> arrived;  // without waiting
};

struct Link {
  std::vector<int64_t> members;
  int64_t position = 0;  // of this rank
  std::string key;       // names the group, equal on all members
  std::string place;     // where they meet in the store, equal on all of them
  c10::intrusive_ptr<c10d::Backend> backend;
  // Held by a thread from when its call gets its number until the call has its places in `order`, so that calls begin
  // in the order of their numbers, whichever thread makes them.
  std::mutex numbering;
  MovedTensors moved;                  // guarded by numbering
  int64_t calls = 0;                   // guarded by numbering
  uint64_t history = 0;                // fingerprint of all calls; on a device. Guarded by numbering
  std::deque<Comparison> comparisons;  // whose values have not been looked at. Guarded by numbering
  std::shared_ptr<CallOrder> order = std::make_shared<CallOrder>();
  bool own = false;   // made here, not by the user
  std::mutex making;  // held while `backend` is made
};

class GroupLinks {
 public:
  // `backend`: "gloo" or "nccl". `world_group`: of a user, for all ranks of the world; may be null.
  GroupLinks(std::shared_ptr<Job> job, std::string backend, c10::Device device,
             c10::intrusive_ptr<c10d::ProcessGroup> world_group);

  // The link of the call's group on this rank; all members must request it. Groups with other members, another order of
  // them or another name have links of their own, so that meshes do not get each other's data. `collective` is for
  // texts alone: ranks with several threads may come here by different calls. Valid as long as this. Errors: as of
  // Job::run; at once that members have the group in another order; after two seconds that they make one of another
  // mesh instead. Thread-safe.
  Link& of(const CommCall& call, Collective collective);

  // For groups of several ranks, the number of calls of each.
  std::vector<GroupCalls> calls();

  // Before the end, which waits for what is under way.
  void abandon();  // leaves all backends open, for ever
  void close(
      std::chrono::seconds at_most);  // shuts down those that were made here; abandons them if others do not come

 private:
  using Make = std::function<c10::intrusive_ptr<c10d::Backend>()>;

  void connect(Link& link, const CommCall& call, Collective collective);
  // Makes the backend of a link once all ranks are there. Owns its captures.
  Make gloo(const Link& link, const c10::intrusive_ptr<c10d::Store>& store);
  Make nccl(const Link& link, const c10::intrusive_ptr<c10d::Store>& store);
  void watch(const Link& link);

  const std::shared_ptr<Job> job_;
  const std::string backend_;
  const c10::Device device_;
  c10::intrusive_ptr<c10d::ProcessGroup> world_group_;
  std::mutex mutex_;
  absl::flat_hash_map<std::pair<std::string, std::vector<int64_t>>, std::unique_ptr<Link>> links_;  // guarded by mutex_
  absl::flat_hash_map<std::string, int64_t> made_;  // by name and set of members. Guarded by mutex_
  MeetingPlaces places_;
};

}  // namespace dtensor::internal
