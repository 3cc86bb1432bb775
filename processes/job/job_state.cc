#include "processes/job/job_state.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "observe/flight_recorder.h"
#include "processes/job/find_culprit.h"
#include "processes/job/host_process.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kListen{100};         // how soon a rank notices that another failed
constexpr Milliseconds kListenSlowly{1000};  // while the store does not answer
constexpr Milliseconds kGrace{600};          // how long a rank that detects a failure lets the failed rank report first

}  // namespace

void throw_failure(const std::string& text) { C10_THROW_ERROR(DistError, text); }

JobState::JobState(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, Milliseconds timeout)
    : world_store_(make_bounded_store(std::move(store), timeout)),
      store_(world_store_->under("",
                                 [failure = failure_] {
                                   if (failure->is_set.load(std::memory_order_acquire)) throw_failure(failure->text);
                                 })),
      rank_(rank),
      size_(size),
      timeout_(timeout),
      listener_board_(*world_store_, rank),
      board_(*world_store_, rank),
      devices_(timeout, {[this](const Activity& activity, absl::Span<const int64_t> members, const std::string& error,
                                bool overdue) { fail_activity(activity, members, error, overdue); },
                         [this](const Activity& activity, absl::Span<const int64_t> members) {
                           return any_gone(activity, members);
                         },
                         [this](const std::string& error) { post_failure(rank_, error); }}) {}

void JobState::start_listening(const std::string& id, std::function<std::string()> answer) {
  listener_ = std::thread([this] { listen(); });
  status_server_ = std::make_unique<StatusServer>(RankAddress{id, rank_, size_, ::getpid(), process_start(::getpid())},
                                                  std::move(answer));
}

void JobState::stop_listening() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  status_server_.reset();
  listener_.join();
}

JobState::Waiting::Waiting(JobState& state, const Activity& activity) : state_(state) {
  std::lock_guard lock(state_.mutex_);
  position_ = state_.waiting_.insert(state_.waiting_.end(), {activity, Clock::now()});
}

JobState::Waiting::~Waiting() {
  std::lock_guard lock(state_.mutex_);
  state_.waiting_.erase(position_);
}

bool JobState::set_failure_text(std::string text) {
  std::lock_guard lock(mutex_);
  if (failed()) return false;
  failure_->text = std::move(text);
  failure_->is_set.store(true, std::memory_order_release);
  return true;
}

void JobState::set_failure(std::string text) {
  if (!set_failure_text(std::move(text))) return;
  devices_.job_failed();
  dump_flight_recorder_on_failure(rank_);
}

void JobState::close(const std::string& text) { set_failure_text(absl::StrCat("rank ", rank_, " failed: ", text)); }

std::string JobState::post_failure(int64_t culprit, const std::string& message) {
  std::string text = absl::StrCat("rank ", culprit, " failed: ", message);
  try {
    text = board_.post_failure(text);
  } catch (const std::exception&) {
    // The store is gone, so the others cannot be notified; they will detect that themselves.
  }
  set_failure(text);
  return failure_text();
}

RankStatus JobState::status() const {
  const auto on_device = devices_.waits_for();
  std::lock_guard lock(mutex_);
  RankStatus now = begun_;
  const auto waits_in = [&](const Activity& activity, Clock::time_point since) {
    now.active = true;
    now.what = activity.what;
    now.group = activity.group;
    now.waited = std::chrono::duration_cast<Milliseconds>(Clock::now() - since);
  };
  if (!waiting_.empty()) {
    waits_in(waiting_.back().first, waiting_.back().second);
  } else if (on_device) {
    waits_in(on_device->activity, on_device->begin);
  }
  return now;
}

void JobState::listen_once() {
  if (!failed()) {
    if (auto text = listener_board_.failure()) set_failure(*std::move(text));
  }
  if (const int64_t question = listener_board_.last_question(); question > answered_) {
    listener_board_.answer(question, status());
    answered_ = question;
  }
}

void JobState::listen() {
  for (Milliseconds pause = kListen;;) {
    {
      std::unique_lock lock(mutex_);
      if (stopping_.wait_for(lock, pause, [&] { return stop_; })) return;
    }
    try {
      listen_once();
      pause = kListen;
    } catch (const std::exception&) {
      // The store is gone, as at the end of a job whose first rank served it, or it will answer again.
      pause = std::min(2 * pause, kListenSlowly);
    }
  }
}

std::vector<int64_t> JobState::others(absl::Span<const int64_t> members) const {
  std::vector<int64_t> others(members.begin(), members.end());
  others.erase(std::remove(others.begin(), others.end(), rank_), others.end());
  return others;
}

std::string JobState::fail_activity(const Activity& activity, absl::Span<const int64_t> members,
                                    const std::string& error, bool overdue) {
  // The failed rank has the best error text.
  for (const auto until = Clock::now() + kGrace; !failed() && Clock::now() < until;) {
    std::this_thread::sleep_for(Milliseconds(10));
  }
  if (failed()) return failure_text();
  if (const auto blame = find_leaver(board_, members, rank_, activity)) {
    return post_failure(blame->first, blame->second);
  }
  for (int64_t other : others(members)) {
    if (const std::string fault = find_fault(board_, other, activity, /*only_final=*/false); !fault.empty()) {
      return post_failure(other, absl::StrCat(fault, ", while rank ", rank_, " waited in ", activity.what));
    }
  }
  if (overdue) {
    if (const auto missing = find_missing(board_, others(members), activity, timeout_)) {
      return post_failure(missing->first, missing->second);
    }
  }
  return post_failure(rank_, absl::StrCat(activity.what, ": ", error));
}

void JobState::record_begin(const Activity& activity) {
  std::lock_guard lock(mutex_);
  begun_.begun[activity.group] = activity.sequence;
  begun_.last[activity.group] = activity.what;
}

bool JobState::any_gone(const Activity& activity, absl::Span<const int64_t> members) {
  const auto those = others(members);
  return std::any_of(those.begin(), those.end(),
                     [&](int64_t other) { return !find_fault(board_, other, activity, /*only_final=*/true).empty(); });
}

}  // namespace dtensor::internal
