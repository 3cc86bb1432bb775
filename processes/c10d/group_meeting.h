// How the members of a group meet at the store before they connect, and find out there that they have not come to make
// the same group.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "processes/job/job.h"

namespace dtensor::internal {

// The group that one rank makes with others.
struct Meeting {
  std::string place;             // in the store, equal on all members
  std::string group;             // its name
  std::string mesh;              // of the group: "mesh(dp=2, tp=2)"; "": not known
  std::vector<int64_t> members;  // in the order of the group
};

// A rank's post for the others: all groups that its threads make now.
struct MeetingPost {
  bool main_only = true;  // only its main thread has ever come to make a group
  std::vector<Meeting> meetings;
};

// Where threads of this rank have been and are. Thread-safe.
class MeetingPlaces {
 public:
  // The calling thread has.
  void come_to(const Meeting& meeting);
  void leave(const std::string& place);  // it waits there no more
  bool has_come_to(const std::string& place) const;
  bool main_only() const;
  // Calls `write` with what is to be posted; one thread at a time, so that what is written last is the newest.
  void post(const std::function<void(const MeetingPost&)>& write) const;

 private:
  mutable std::mutex posting_;  // locked before mutex_
  mutable std::mutex mutex_;
  std::set<std::string> come_;  // guarded by mutex_
  MeetingPost now_;             // guarded by mutex_
};

// Waits until all members are there. Errors, on all ranks the same and the job's end: as of Job::wait_until; at once
// that members have the group in another order; that a member waits elsewhere for this rank, to make a group of another
// mesh. That is taken for certain after two to four seconds where on both ranks only the main thread has ever made
// groups; else another thread may be about to make the other group, and it is the error of the deadline.
void meet(Job& job, const Activity& activity, const Meeting& meeting, MeetingPlaces& places);

}  // namespace dtensor::internal
