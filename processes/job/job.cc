#include "processes/job/job.h"

#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "observe/flight_recorder.h"
#include "processes/job/device_watch.h"
#include "processes/job/host_process.h"
#include "processes/job/job_blame.h"
#include "processes/job/job_board.h"
#include "processes/job/terminate_notice.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPoll{100};   // how soon a rank notices that another failed
constexpr Milliseconds kGrace{600};  // how long the one who noticed lets the one who failed speak first

[[noreturn]] void throw_failure(const std::string& text) { C10_THROW_ERROR(DistError, text); }

std::string overdue_text(Milliseconds timeout) { return absl::StrCat("not done within ", seconds_text(timeout)); }

// While a backend starts its work, which takes the thread's debug info along, the scope with its mesh among it. A
// backend's thread keeps its last work, so the scope would keep the mesh, the mesh the world, and the world the
// backend.
class WithoutScope {
 public:
  WithoutScope() { c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(nullptr); }
  ~WithoutScope() { c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(info_); }
  WithoutScope(const WithoutScope&) = delete;
  WithoutScope& operator=(const WithoutScope&) = delete;

 private:
  const std::shared_ptr<c10::ThreadLocalDebugInfo> info_ = c10::ThreadLocalDebugInfo::current();
};

// Gloo writes to sockets whose other end may have died; the signal for that would end the process instead of the call.
void ignore_broken_pipes() {
  struct sigaction now = {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

}  // namespace

struct Job::State {
  State(c10::intrusive_ptr<c10d::Store> s, int64_t rank, int64_t size, Milliseconds timeout)
      : store(std::move(s)),
        rank(rank),
        size(size),
        timeout(timeout),
        listening(store, rank),
        board(store, rank),
        devices(timeout,
                {[this](const Activity& activity, absl::Span<const int64_t> members, const std::string& error,
                        bool overdue) { accuse(activity, members, error, overdue); },
                 [this](const Activity& mine, absl::Span<const int64_t> members) { return any_gone(mine, members); },
                 [this](const std::string& error) { post_failure(this->rank, error); }}) {}

  void listen();
  void listen_once();
  void set_failure(std::string text);
  std::string failure_text();
  // Tells all ranks that `culprit` failed. The first to do so counts: returns the text that does.
  std::string post_failure(int64_t culprit, const std::string& message);
  RankStatus status() const;
  // Fails the job for an error in `activity`, with the rank to blame; returns the failure's text.
  std::string accuse(const Activity& activity, absl::Span<const int64_t> members, const std::string& error,
                     bool overdue);
  [[noreturn]] void blame(const Activity& activity, absl::Span<const int64_t> members, const std::string& error,
                          bool overdue) {
    throw_failure(accuse(activity, members, error, overdue));
  }
  void begin(const Activity& next);
  bool any_gone(const Activity& mine, absl::Span<const int64_t> members);
  std::vector<int64_t> others(absl::Span<const int64_t> members) const;

  const c10::intrusive_ptr<c10d::Store> store;
  const int64_t rank, size;
  const Milliseconds timeout;
  JobBoard listening;  // of the listening thread
  JobBoard board;      // of all others

  std::atomic<bool> failed{false};
  mutable std::mutex mutex;  // of all below, but for `devices`
  std::condition_variable stopping;
  bool stop = false;
  std::string failure;
  std::list<Activity> busy;  // what threads wait in
  RankStatus done;           // what has begun; `active` and `what` are those of `busy`
  int64_t answered = 0;
  std::thread listener;
  DeviceWatch devices;
  // What this rank is doing meanwhile.
  struct Busy {
    State& state;
    std::list<Activity>::iterator mine;
    Busy(State& s, const Activity& activity) : state(s) {
      std::lock_guard lock(state.mutex);
      mine = state.busy.insert(state.busy.end(), activity);
    }
    ~Busy() {
      std::lock_guard lock(state.mutex);
      state.busy.erase(mine);
    }
  };
};

void Job::State::set_failure(std::string text) {
  {
    std::lock_guard lock(mutex);
    if (failed.load()) return;
    failure = std::move(text);
    failed.store(true, std::memory_order_release);
  }
  devices.job_failed();
  dump_flight_recorder_on_failure(rank);
}

std::string Job::State::failure_text() {
  std::lock_guard lock(mutex);
  return failure;
}

std::string Job::State::post_failure(int64_t culprit, const std::string& message) {
  std::string text = absl::StrCat("rank ", culprit, " failed: ", message);
  try {
    text = board.post_failure(text);
  } catch (const std::exception&) {
    // The store is gone, and with it the way to tell them; they will notice that themselves.
  }
  set_failure(text);
  return failure_text();
}

RankStatus Job::State::status() const {
  const auto on_device = devices.waits_for();
  std::lock_guard lock(mutex);
  RankStatus now = done;
  const Activity* doing = !busy.empty() ? &busy.back() : on_device ? &*on_device : nullptr;
  if (doing != nullptr) {
    now.active = true;
    now.what = doing->what;
    now.group = doing->group;
  }
  return now;
}

void Job::State::listen_once() {
  if (!failed.load()) {
    if (auto text = listening.failure()) set_failure(*std::move(text));
  }
  if (const int64_t question = listening.last_question(); question > answered) {
    listening.answer(question, status());
    answered = question;
  }
}

void Job::State::listen() {
  for (int failures = 0; failures < 5;) {
    {
      std::unique_lock lock(mutex);
      if (stopping.wait_for(lock, kPoll, [&] { return stop; })) return;
    }
    try {
      listen_once();
      failures = 0;
    } catch (const std::exception&) {
      ++failures;  // the store is gone, as at the end of a job whose first rank served it
    }
  }
}

std::vector<int64_t> Job::State::others(absl::Span<const int64_t> members) const {
  std::vector<int64_t> others(members.begin(), members.end());
  others.erase(std::remove(others.begin(), others.end(), rank), others.end());
  return others;
}

std::string Job::State::accuse(const Activity& mine, absl::Span<const int64_t> members, const std::string& error,
                               bool overdue) {
  // The one who failed knows best why.
  for (const auto until = Clock::now() + kGrace; !failed.load() && Clock::now() < until;) {
    std::this_thread::sleep_for(Milliseconds(10));
  }
  if (failed.load()) return failure_text();
  for (int64_t other : others(members)) {
    if (const std::string ailment = what_ails(board, other, mine, /*patient=*/false); !ailment.empty()) {
      return post_failure(other, absl::StrCat(ailment, ", while rank ", rank, " waited in ", mine.what));
    }
  }
  if (overdue) {
    if (const auto missing = find_missing(board, others(members), mine, timeout)) {
      return post_failure(missing->first, missing->second);
    }
  }
  return post_failure(rank, absl::StrCat(mine.what, ": ", error));
}

void Job::State::begin(const Activity& next) {
  std::lock_guard lock(mutex);
  done.begun[next.group] = next.sequence;
  done.last[next.group] = next.what;
}

bool Job::State::any_gone(const Activity& mine, absl::Span<const int64_t> members) {
  const auto those = others(members);
  return std::any_of(those.begin(), those.end(),
                     [&](int64_t m) { return !what_ails(board, m, mine, /*patient=*/true).empty(); });
}

Job::Job(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, Milliseconds timeout)
    : state_(std::make_shared<State>(std::move(store), rank, size, timeout)) {
  ignore_broken_pipes();
  post_place(*state_->store, rank);
  tell_others_on_terminate();
  prepare_flight_recorder(rank, timeout);
  tell_on_terminate(this, [this](const std::string& message) { fail(message); });
  state_->listener = std::thread([state = state_.get()] { state->listen(); });
}

Job::~Job() {
  forget_on_terminate(this);
  if (std::uncaught_exceptions() > 0) fail("an exception ended its program");
  try {
    state_->board.post_left(state_->status());
  } catch (const std::exception&) {
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->stopping.notify_all();
  state_->listener.join();
  state_->devices.stop();
}

int64_t Job::rank() const { return state_->rank; }
int64_t Job::size() const { return state_->size; }
Milliseconds Job::timeout() const { return state_->timeout; }
const c10::intrusive_ptr<c10d::Store>& Job::store() const { return state_->store; }

bool Job::one_host() const {
  const auto deadline = Clock::now() + timeout();
  const std::string here = host_name();
  const auto place_of = [&](int64_t rank) -> std::optional<JobBoard::Place> {
    try {
      return state_->board.place(rank);
    } catch (const std::exception&) {
      return std::nullopt;
    }
  };
  bool one = true;
  for (int64_t r = 0; r < size(); ++r) {
    auto place = place_of(r);
    while (!place) {
      check();
      if (Clock::now() >= deadline) {
        std::vector<int64_t> missing;
        for (int64_t other = 0; other < size(); ++other) {
          if (!place_of(other)) missing.push_back(other);
        }
        throw_failure(state_->post_failure(
            missing.empty() ? rank() : missing[0],
            absl::StrCat("of ", size(), " ranks, rank", missing.size() == 1 ? " " : "s ", absl::StrJoin(missing, ", "),
                         " did not come within ", seconds_text(timeout()),
                         "; start as many processes as the world has ranks")));
      }
      std::this_thread::sleep_for(Milliseconds(5));
      place = place_of(r);
    }
    one &= place->host == here;
  }
  return one;
}

void Job::check() const {
  if (state_->failed.load(std::memory_order_acquire)) throw_failure(state_->failure_text());
}

bool Job::failed() const noexcept { return state_->failed.load(std::memory_order_acquire); }

void Job::fail_as(int64_t culprit, const std::string& message) noexcept {
  try {
    if (!state_->failed.load()) state_->post_failure(culprit, message);
  } catch (...) {
  }
}

void Job::meet(const Activity& activity, absl::Span<const int64_t> members, const std::function<bool()>& here) {
  const auto begin = Clock::now();
  auto pause = std::chrono::microseconds(200);
  try {
    while (!here()) {
      check();
      if (Clock::now() - begin >= timeout()) {
        state_->blame(activity, members, overdue_text(timeout()), /*overdue=*/true);
      }
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, std::chrono::microseconds(20000));
    }
  } catch (const c10::DistError&) {
    throw;
  } catch (const std::exception& e) {
    state_->blame(activity, members, message_of(e), /*overdue=*/false);
  }
}

struct Job::Begun {
  Activity activity;
  std::vector<int64_t> members;
  c10::intrusive_ptr<c10d::Work> work;  // null: it is done
  Clock::time_point since;              // the deadline counts from here, as the backend's own does
};

std::shared_ptr<Job::Begun> Job::begin(Activity activity, absl::Span<const int64_t> members,
                                       const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  check();
  auto begun = std::make_shared<Begun>();
  begun->activity = std::move(activity);
  begun->members.assign(members.begin(), members.end());
  state_->begin(begun->activity);
  const State::Busy busy(*state_, begun->activity);
  begun->since = Clock::now();
  try {
    const WithoutScope without;
    begun->work = start();
  } catch (const std::exception& e) {
    state_->blame(begun->activity, members, message_of(e), /*overdue=*/Clock::now() - begun->since >= timeout());
  }
  return begun;
}

bool Job::is_done(const Begun& begun) const { return !begun.work || begun.work->isCompleted(); }

void Job::finish(const Begun& begun) {
  const c10::intrusive_ptr<c10d::Work>& work = begun.work;
  if (!work) return;
  const State::Busy busy(*state_, begun.activity);
  const auto since = begun.since;
  auto look_again = Clock::now() + Milliseconds(1000);  // at whether the others are alive
  try {
    for (;;) {
      const auto left = std::chrono::duration_cast<Milliseconds>(since + timeout() - Clock::now());
      try {
        work->wait(std::max(Milliseconds(1), std::min(kPoll, left)));
        return;
      } catch (const std::exception&) {
        if (work->isCompleted()) {  // else it is only not ready yet
          work->wait();             // if it has failed, throws why; it may have ended just after the wait above
          return;
        }
      }
      if (state_->failed.load() || Clock::now() - since >= timeout()) break;
      if (Clock::now() < look_again) continue;
      look_again += Milliseconds(1000);
      if (state_->any_gone(begun.activity, begun.members)) break;
    }
  } catch (const std::exception& e) {
    fail(begun, e);
  }
  state_->blame(begun.activity, begun.members, overdue_text(timeout()), /*overdue=*/Clock::now() - since >= timeout());
}

void Job::fail(const Begun& begun, const std::exception& error) {
  state_->blame(begun.activity, begun.members, message_of(error), /*overdue=*/Clock::now() - begun.since >= timeout());
}

void Job::run(Activity activity, absl::Span<const int64_t> members,
              const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  finish(*begin(std::move(activity), members, start));
}

void Job::launch(Activity activity, absl::Span<const int64_t> members,
                 const std::function<std::function<bool()>()>& start) {
  check();
  state_->begin(activity);
  DeviceWatch::Launched launched{std::move(activity), {members.begin(), members.end()}, Clock::now(), {}};
  try {
    const WithoutScope without;
    launched.done = start();
  } catch (const std::exception& e) {
    state_->blame(launched.activity, members, message_of(e), /*overdue=*/Clock::now() - launched.begin >= timeout());
  }
  state_->devices.add(std::move(launched));
}

void Job::watch_group(std::vector<int64_t> members, std::function<std::string()> error, std::function<void()> abort) {
  state_->devices.add_group({std::move(members), std::move(error), std::move(abort)}, state_);
}

}  // namespace dtensor
