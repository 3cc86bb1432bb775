// How the members of a group meet at the store before they connect, and find out there that they have not come to make
// the same group. Internal to GroupLinks.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "processes/job/job.h"

namespace dtensor {

// What one rank makes when it meets others.
struct Meeting {
  std::string place;             // in the store, equal on all members
  std::string group;             // its name
  std::string mesh;              // of the group: "mesh(dp=2, tp=2)"; "": not known
  std::vector<int64_t> members;  // in the order of the group
};

// Where threads of this rank have been. Thread-safe.
class MeetingPlaces {
 public:
  void come_to(const std::string& place) {
    std::lock_guard lock(mutex_);
    come_.insert(place);
  }
  bool has_come_to(const std::string& place) const {
    std::lock_guard lock(mutex_);
    return come_.count(place) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> come_;  // guarded by mutex_
};

// Waits until all members are there. Errors, on all ranks the same and the job's end: as of Job::wait_until; at once
// that members have the group in another order; that a member waits elsewhere for this rank, to make a group of another
// mesh. Two seconds must pass until that is certain, as another thread may be about to make the other group.
void meet(Job& job, const Activity& activity, const Meeting& meeting, MeetingPlaces& places);

}  // namespace dtensor
