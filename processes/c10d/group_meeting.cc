#include "processes/c10d/group_meeting.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "processes/job/bounded_store.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

constexpr std::chrono::milliseconds kLook{200};      // how often a rank that waits looks where the others are
constexpr std::chrono::milliseconds kCertain{2000};  // how long they must be elsewhere

// What a rank posts of the last group that it has come to make.
std::string to_text(const Meeting& m) {
  return Json{{"place", m.place}, {"group", m.group}, {"mesh", m.mesh}, {"members", m.members}}.dump();
}

Meeting meeting_from(const std::string& text) {
  const Json json = Json::parse(text);
  return {json.at("place").get<std::string>(), json.at("group").get<std::string>(), json.at("mesh").get<std::string>(),
          json.at("members").get<std::vector<int64_t>>()};
}

std::string describe(const Meeting& m) {
  return absl::StrCat("the group ", m.group, " of ranks ", absl::StrJoin(m.members, ","), " of ", m.mesh);
}

// One wait of one thread.
class Wait {
 public:
  Wait(Job& job, const Meeting& mine, const MeetingPlaces& places)
      : job_(job), mine_(mine), places_(places), ranks_(mine.members) {
    std::sort(ranks_.begin(), ranks_.end());
  }

  // Says that this rank is here, and whether all are.
  bool all_here() {
    if (!said_) {
      store().set(here(mine_.place, job_.rank()), absl::StrJoin(mine_.members, ","));
      store().set(absl::StrCat("making/", job_.rank()), to_text(mine_));
    }
    said_ = true;
    while (orders_.size() < ranks_.size()) {
      const std::string key = here(mine_.place, ranks_[orders_.size()]);
      if (!store().check({key})) {
        look_elsewhere();
        return false;
      }
      orders_.push_back(store().get_to_str(key));
    }
    return true;
  }

  // REQUIRES: all are here.
  void check_orders() const {
    const auto n = static_cast<int64_t>(ranks_.size());
    int64_t culprit = n - 1;  // of those who are fewest; where all are as many, the last
    const auto same = [&](int64_t p) { return std::count(orders_.begin(), orders_.end(), orders_[p]); };
    if (same(0) == n) return;
    std::string error = absl::StrCat("ranks do not have the same mesh. The group ", mine_.group, " is, in order,");
    for (int64_t p = 0; p < n; ++p) {
      if (same(p) < same(culprit)) culprit = p;
      absl::StrAppend(&error, p > 0 ? ";" : "", " ranks ", orders_[p], " on rank ", ranks_[p]);
    }
    job_.fail_as(ranks_[culprit], error);
    job_.check();
  }

 private:
  c10d::Store& store() const { return *job_.store(); }
  static std::string here(const std::string& place, int64_t rank) { return absl::StrCat(place, "/here/", rank); }

  // Of `rank`, if it waits elsewhere for this one, where no thread of this rank has been, to make another mesh's group.
  // It cannot come from there, nor this rank from here, unless other threads come to both.
  std::optional<Meeting> elsewhere(int64_t rank) const {
    const std::string key = absl::StrCat("making/", rank);
    if (!store().check({key})) return std::nullopt;
    Meeting other = meeting_from(store().get_to_str(key));
    const bool for_me = std::count(other.members.begin(), other.members.end(), job_.rank()) > 0;
    const bool differs = other.mesh != mine_.mesh && !other.mesh.empty() && !mine_.mesh.empty();
    if (!differs || !for_me || places_.has_come_to(other.place)) return std::nullopt;
    return other;
  }

  void look_elsewhere() {
    const auto now = Clock::now();
    if (now < look_again_) return;
    look_again_ = now + kLook;
    bool any = false;
    for (const int64_t rank : ranks_) {
      if (store().check({here(mine_.place, rank)})) continue;
      const auto other = elsewhere(rank);
      if (!other) continue;
      any = true;
      if (!since_) since_ = now;
      if (now - *since_ >= kCertain) fail(rank, *other);
    }
    if (!any) since_.reset();
  }

  int64_t count_at(const Meeting& m) const {
    return std::count_if(m.members.begin(), m.members.end(),
                         [&](int64_t rank) { return store().check({here(m.place, rank)}); });
  }

  [[noreturn]] void fail(int64_t rank, const Meeting& other) const {
    // Those who are fewest are to blame; where both are as many, the last rank.
    const int64_t here_n = count_at(mine_), there_n = count_at(other);
    const bool theirs = there_n != here_n ? there_n < here_n : rank > job_.rank();
    const int64_t low = std::min(rank, job_.rank()), high = std::max(rank, job_.rank());
    const Meeting& first = low == rank ? other : mine_;
    const Meeting& second = low == rank ? mine_ : other;
    job_.fail_as(
        theirs ? rank : job_.rank(),
        absl::StrCat("ranks do not have the same mesh: rank ", low, " makes ", describe(first), ", while rank ", high,
                     " makes ", describe(second), "; make equal meshes on all ranks, and use them in one order"));
    job_.check();
    TORCH_INTERNAL_ASSERT(false);
  }

  Job& job_;
  const Meeting& mine_;
  const MeetingPlaces& places_;
  std::vector<int64_t> ranks_;       // sorted
  std::vector<std::string> orders_;  // of the first of ranks_, the group as each has it
  bool said_ = false;
  Clock::time_point look_again_ = Clock::now() + kLook;
  std::optional<Clock::time_point> since_;  // when somebody was first seen elsewhere
};

}  // namespace

void meet(Job& job, const Activity& activity, const Meeting& meeting, MeetingPlaces& places) {
  places.come_to(meeting.place);
  Wait wait(job, meeting, places);
  job.wait_until(activity, meeting.members, [&] { return wait.all_here(); });
  wait.check_orders();
}

}  // namespace dtensor
