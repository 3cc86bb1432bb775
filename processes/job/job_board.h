// Messages between the ranks of a job through its store: their hosts, a failure, their activity, that they have left.
//
// Errors (std::exception): the store is gone, or does not answer within two seconds, which is known at once the next
// time. Thread-safe.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "processes/job/bounded_store.h"

namespace dtensor::internal {

// A rank's activity, and its last calls.
struct RankStatus {
  bool active = false;  // it waits in `what`, a call of `group`
  std::string what, group;
  std::chrono::milliseconds waited{0};      // so far; not sent to other ranks
  std::map<std::string, int64_t> begun;     // by group, the last call
  std::map<std::string, std::string> last;  // their descriptions

  bool has_begun(const std::string& in_group, int64_t sequence) const {
    const auto it = begun.find(in_group);
    return it != begun.end() && it->second >= sequence;
  }
};

class JobBoard {
 public:
  struct Place {
    std::string host;  // host_name()
    int64_t pid = 0;
    std::string pid_namespace;  // pid_namespace(): `pid` means nothing in another one
    std::string start;          // process_start(): detects that another process has the number later
  };
  // Values that must be equal on all ranks. The first rank to come sets them.
  struct Setup {
    int64_t rank = 0;  // whose
    int64_t size = 0;  // ranks of the world
    std::string debug, version;
  };

  // For rank `rank`. Calls the store on a thread of its own, so that it never waits for others' calls.
  JobBoard(const BoundedStore& store, int64_t rank);

  // nullopt: that rank has not come yet.
  std::optional<Place> place(int64_t rank);

  // The one of the first rank that came, `mine` if that is this one.
  Setup first_setup(const Setup& mine);

  // The first failure that is posted counts: returns its text where it is known already, else `text`.
  std::string post_failure(const std::string& text);
  std::optional<std::string> failure();

  // Asks all ranks for their status. The number of the question, larger than those before.
  int64_t ask();
  int64_t last_question();  // 0 if there was none
  void answer(int64_t question, const RankStatus& mine);
  std::optional<RankStatus> answer_of(int64_t question, int64_t rank);

  void post_left(const RankStatus& mine);
  std::optional<RankStatus> left(int64_t rank);  // its last calls; nullopt: it has not left

  // This rank has ended its use of `group` after so many calls. How many ranks have, after as many calls.
  void post_ended(const std::string& group, int64_t calls);
  int64_t ended(const std::string& group, int64_t calls);

 private:
  std::optional<std::string> read(const std::string& key);  // REQUIRES: mutex_ is held

  const int64_t rank_;
  std::mutex mutex_;
  const c10::intrusive_ptr<BoundedStore> store_;  // guarded by mutex_
  std::map<int64_t, Place> places_;               // guarded by mutex_
};

// Posts where this rank runs.
void post_place(c10d::Store& store, int64_t rank);

// A name for the job that no other has: hexadecimal digits, equal on all ranks.
std::string agree_on_id(c10d::Store& store);

}  // namespace dtensor::internal
