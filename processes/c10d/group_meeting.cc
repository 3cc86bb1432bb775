#include "processes/c10d/group_meeting.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "processes/job/bounded_store.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::json;

// When a rank that waits first looks where the others are, and how often at last: every look asks the store for each
// member that is missing.
constexpr std::chrono::milliseconds kFirstLook{200}, kSlowLook{2000};
constexpr std::chrono::milliseconds kCertain{2000};   // how long they must be elsewhere
constexpr std::chrono::milliseconds kBeforeEnd{500};  // before the deadline, the reason is reported

std::string to_text(const MeetingPost& post) {
  Json meetings = Json::array();
  for (const Meeting& m : post.meetings) {
    meetings.push_back({{"place", m.place}, {"group", m.group}, {"mesh", m.mesh}, {"members", m.members}});
  }
  return Json{{"main_only", post.main_only}, {"meetings", std::move(meetings)}}.dump();
}

MeetingPost post_from(const std::string& text) {
  const Json json = Json::parse(text);
  MeetingPost post{json.at("main_only").get<bool>(), {}};
  for (const Json& m : json.at("meetings")) {
    post.meetings.push_back({m.at("place").get<std::string>(), m.at("group").get<std::string>(),
                             m.at("mesh").get<std::string>(), m.at("members").get<std::vector<int64_t>>()});
  }
  return post;
}

std::string describe(const Meeting& m) {
  return absl::StrCat("the group ", m.group, " of ranks ", absl::StrJoin(m.members, ","), " of ", m.mesh);
}

// One wait of one thread.
class Wait {
 public:
  Wait(Job& job, const Meeting& mine, MeetingPlaces& places)
      : job_(job), mine_(mine), places_(places), ranks_(mine.members) {
    std::sort(ranks_.begin(), ranks_.end());
    places_.come_to(mine_);
  }
  ~Wait() { places_.leave(mine_.place); }
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  // Posts that this rank is here; returns whether all are.
  bool all_here() {
    if (!is_posted_) {
      store().set(here(mine_.place, job_.rank()), absl::StrJoin(mine_.members, ","));
      places_.post([&](const MeetingPost& post) { store().set(absl::StrCat("making/", job_.rank()), to_text(post)); });
    }
    is_posted_ = true;
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
    int64_t culprit = n - 1;  // in the smallest set of agreeing ranks; on a tie, the last
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

  struct Elsewhere {
    Meeting meeting;
    bool stays;  // no other thread of that rank comes here, as far as is known
  };

  // The place of `rank`, if it waits elsewhere for this one, where no thread of this rank has been, to make another
  // mesh's group. Neither can leave its meeting, unless other threads join both.
  std::optional<Elsewhere> elsewhere(int64_t rank) const {
    const std::string key = absl::StrCat("making/", rank);
    if (!store().check({key})) return std::nullopt;
    const MeetingPost post = post_from(store().get_to_str(key));
    for (const Meeting& other : post.meetings) {
      const bool for_me = std::count(other.members.begin(), other.members.end(), job_.rank()) > 0;
      const bool differs = other.mesh != mine_.mesh && !other.mesh.empty() && !mine_.mesh.empty();
      if (differs && for_me && !places_.has_come_to(other.place)) return Elsewhere{other, post.main_only};
    }
    return std::nullopt;
  }

  void look_elsewhere() {
    const auto now = Clock::now();
    const bool last = now >= last_look_;
    if (now < look_again_ && !last) return;
    pause_ = std::min(2 * pause_, kSlowLook);
    look_again_ = now + pause_;
    if (last) last_look_ = Clock::time_point::max();
    bool any = false;
    for (const int64_t rank : ranks_) {
      if (store().check({here(mine_.place, rank)})) continue;
      const auto other = elsewhere(rank);
      if (!other) continue;
      any = true;
      if (!since_) since_ = now;
      const bool certain = now - *since_ >= kCertain && other->stays && places_.main_only();
      if (certain || last) fail(rank, other->meeting);
    }
    if (!any) since_.reset();
  }

  int64_t count_at(const Meeting& m) const {
    return std::count_if(m.members.begin(), m.members.end(),
                         [&](int64_t rank) { return store().check({here(m.place, rank)}); });
  }

  [[noreturn]] void fail(int64_t rank, const Meeting& other) const {
    // The smaller set is to blame; on a tie, the last rank.
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
  MeetingPlaces& places_;
  std::vector<int64_t> ranks_;       // sorted
  std::vector<std::string> orders_;  // of the first of ranks_, the group as each has it
  bool is_posted_ = false;
  std::chrono::milliseconds pause_ = kFirstLook;
  Clock::time_point look_again_ = Clock::now() + kFirstLook;
  Clock::time_point last_look_ = Clock::now() + job_.timeout() - std::min(kBeforeEnd, job_.timeout() / 10);
  std::optional<Clock::time_point> since_;  // when another rank was first seen elsewhere
};

}  // namespace

void MeetingPlaces::come_to(const Meeting& meeting) {
  std::lock_guard lock(mutex_);
  come_.insert(meeting.place);
  now_.main_only &= ::gettid() == ::getpid();
  now_.meetings.push_back(meeting);
}

void MeetingPlaces::leave(const std::string& place) {
  std::lock_guard lock(mutex_);
  auto& meetings = now_.meetings;
  const auto it = std::find_if(meetings.begin(), meetings.end(), [&](const Meeting& m) { return m.place == place; });
  if (it != meetings.end()) meetings.erase(it);
}

bool MeetingPlaces::has_come_to(const std::string& place) const {
  std::lock_guard lock(mutex_);
  return come_.count(place) > 0;
}

bool MeetingPlaces::main_only() const {
  std::lock_guard lock(mutex_);
  return now_.main_only;
}

void MeetingPlaces::post(const std::function<void(const MeetingPost&)>& write) const {
  std::lock_guard posting(posting_);
  MeetingPost now;
  {
    std::lock_guard lock(mutex_);
    now = now_;
  }
  write(now);
}

void meet(Job& job, const Activity& activity, const Meeting& meeting, MeetingPlaces& places) {
  Wait wait(job, meeting, places);
  job.wait_until(activity, meeting.members, [&] { return wait.all_here(); });
  wait.check_orders();
}

}  // namespace dtensor::internal
