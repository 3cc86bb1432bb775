#include "processes/job.h"

#include <c10/util/Exception.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <exception>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "mesh/flight_recorder.h"
#include "processes/error_file.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Json = nlohmann::json;

constexpr Milliseconds kPoll{100};         // how soon a rank notices that another failed
constexpr Milliseconds kStoreTimeout{2000};  // of single questions to the store
constexpr Milliseconds kAnswer{1500};        // how long a rank may take to say what it is doing
constexpr Milliseconds kDevicePoll{20};      // how soon work on a device is known to be done
constexpr Milliseconds kAbort{5000};         // how long the end of a job waits for groups to be aborted
constexpr Milliseconds kGrace{600};          // how long the one who noticed lets the one who failed speak first

std::string host_name() {
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::string id;  // two containers may share a name
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return absl::StrCat(name, " ", id);
}

// "R", "S", "T" (stopped), "Z" (dead, not waited for), "" (no such process).
std::string process_state(int64_t pid) {
  std::ifstream stat(absl::StrCat("/proc/", pid, "/stat"));
  std::string text;
  if (!std::getline(stat, text)) return "";
  const size_t end = text.rfind(')');  // the name may have anything in it
  return end == std::string::npos || end + 2 >= text.size() ? "" : text.substr(end + 2, 1);
}

std::string seconds_text(Milliseconds t) { return absl::StrCat(static_cast<double>(t.count()) / 1000, " s"); }

[[noreturn]] void throw_failure(const std::string& text) { C10_THROW_ERROR(DistError, text); }

// While a backend starts its work, which takes the thread's debug info along, the scope with its mesh among it. A backend's
// thread keeps its last work, so the scope would keep the mesh, the mesh the world, and the world the backend.
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

// The text without the backtrace that LibTorch adds.
std::string message_of(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error != nullptr ? error->what_without_backtrace() : e.what();
}

}  // namespace

struct Job::State {
  // Where a rank runs.
  struct Place {
    std::string host;
    int64_t pid = 0;
  };

  State(c10::intrusive_ptr<c10d::Store> s, int64_t rank, int64_t size, Milliseconds timeout)
      : store(std::move(s)), rank(rank), size(size), timeout(timeout), watch_store(store->clone()), post_store(store->clone()) {
    watch_store->setTimeout(kStoreTimeout);
    post_store->setTimeout(kStoreTimeout);
  }

  void watch();
  void poll();
  void set_failure(std::string text);
  std::string failure_text();
  // Tells all ranks that `culprit` failed. The first to do so counts: returns the text that does.
  std::string post_failure(int64_t culprit, const std::string& message);
  std::optional<Place> place(int64_t rank);
  std::string status() const;
  // What is known to be wrong with a rank that should come to `mine`, "" if nothing is. `patient`: it may still recover.
  std::string what_ails(int64_t other, const Activity& mine, bool patient);
  // Asks what the members are doing, and says who has not come to `activity`.
  std::optional<std::pair<int64_t, std::string>> find_missing(const Activity& activity,
                                                              absl::Span<const int64_t> members);
  // Fails the job for an error in `activity`, with the rank to blame; returns the failure's text.
  std::string accuse(const Activity& activity, absl::Span<const int64_t> members, const std::string& error,
                     bool overdue);
  [[noreturn]] void blame(const Activity& activity, absl::Span<const int64_t> members, const std::string& error,
                          bool overdue) {
    throw_failure(accuse(activity, members, error, overdue));
  }
  void begin(const Activity& next);
  bool any_gone(const Activity& mine, absl::Span<const int64_t> members);

  // Work on a device that may not be done yet.
  struct Launched {
    Activity activity;
    std::vector<int64_t> members;
    Clock::time_point begin;
    std::function<bool()> done;
  };
  struct DeviceGroup {
    std::vector<int64_t> members;
    std::function<std::string()> error;
    std::function<void()> abort;
  };
  void watch_devices();
  void look_at_devices(Clock::time_point& look_again);

  const c10::intrusive_ptr<c10d::Store> store;
  const int64_t rank, size;
  const Milliseconds timeout;

  // Clones, as a store serves one call at a time, and a call may wait.
  const c10::intrusive_ptr<c10d::Store> watch_store;  // of the listening thread
  std::mutex post_mutex;
  const c10::intrusive_ptr<c10d::Store> post_store;  // guarded by post_mutex
  std::map<int64_t, Place> places;                   // guarded by post_mutex

  std::atomic<bool> failed{false};
  mutable std::mutex mutex;  // of all below
  std::condition_variable stopping;
  bool stop = false;
  std::string failure;
  Activity activity;
  bool active = false;
  std::map<std::string, int64_t> begun;  // by group
  std::map<std::string, std::string> last;
  int64_t answered = 0;
  std::thread watcher;
  std::deque<std::shared_ptr<Launched>> launched;  // in the order in which they were
  std::vector<std::shared_ptr<DeviceGroup>> device_groups;
  bool devices_ended = false;  // device_watcher has no more to do
  std::thread device_watcher;  // from the first device group on

  // What this rank is doing meanwhile.
  struct Busy {
    State& state;
    Busy(State& s, const Activity& activity) : state(s) {
      std::lock_guard lock(state.mutex);
      state.activity = activity;
      state.active = true;
    }
    ~Busy() {
      std::lock_guard lock(state.mutex);
      state.active = false;
    }
  };
};

namespace {

// For std::terminate, which has no arguments. Never destroyed: a thread may end after main.
std::mutex& jobs_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::vector<Job*>& live_jobs() {
  static auto* jobs = new std::vector<Job*>;
  return *jobs;
}

std::terminate_handler next_handler = nullptr;

void on_terminate() {
  std::string message = "std::terminate was called";
  if (const auto current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& e) {
      message = message_of(e);
    } catch (...) {
      message = "an exception of unknown type";
    }
  }
  {
    std::unique_lock lock(jobs_mutex(), std::try_to_lock);
    if (lock.owns_lock()) {
      for (Job* job : live_jobs()) job->fail(message);
    }
  }
  if (const char* file = std::getenv("TORCHELASTIC_ERROR_FILE"); file != nullptr) write_error_file(file, message);
  if (next_handler != nullptr) next_handler();
  std::abort();
}

}  // namespace

void tell_others_on_terminate() {
  static std::once_flag once;
  std::call_once(once, [] { next_handler = std::set_terminate(on_terminate); });
}

void Job::State::set_failure(std::string text) {
  {
    std::lock_guard lock(mutex);
    if (failed.load()) return;
    failure = std::move(text);
    failed.store(true, std::memory_order_release);
  }
  stopping.notify_all();
  dump_flight_recorder_on_failure(rank);
}

std::string Job::State::failure_text() {
  std::lock_guard lock(mutex);
  return failure;
}

std::string Job::State::post_failure(int64_t culprit, const std::string& message) {
  std::string text = absl::StrCat("rank ", culprit, " failed: ", message);
  try {
    std::lock_guard lock(post_mutex);
    if (post_store->add("failed/claim", 1) == 1) {
      post_store->set("failed/record", text);
    } else if (post_store->check({"failed/record"})) {
      text = post_store->get_to_str("failed/record");
    }
  } catch (const std::exception&) {
    // The store is gone, and with it the way to tell them; they will notice that themselves.
  }
  set_failure(text);
  return failure_text();
}

std::string Job::State::status() const {
  std::lock_guard lock(mutex);
  const bool on_device = !active && !launched.empty();
  const Activity& now = on_device ? launched.front()->activity : activity;
  Json json = {
      {"active", active || on_device}, {"what", now.what}, {"group", now.group}, {"begun", begun}, {"last", last}};
  return json.dump();
}

void Job::State::poll() {
  if (!failed.load() && watch_store->check({"failed/record"})) set_failure(watch_store->get_to_str("failed/record"));
  if (watch_store->check({"probe"})) {
    const int64_t probe = std::stoll(watch_store->get_to_str("probe"));
    if (probe > answered) {
      watch_store->set(absl::StrCat("status/", probe, "/", rank), status());
      answered = probe;
    }
  }
}

void Job::State::watch() {
  for (int failures = 0; failures < 5;) {
    {
      std::unique_lock lock(mutex);
      if (stopping.wait_for(lock, kPoll, [&] { return stop; })) return;
    }
    try {
      poll();
      failures = 0;
    } catch (const std::exception&) {
      ++failures;  // the store is gone, as at the end of a job whose first rank served it
    }
  }
}

std::optional<Job::State::Place> Job::State::place(int64_t other) {
  std::lock_guard lock(post_mutex);
  if (const auto it = places.find(other); it != places.end()) return it->second;
  try {
    const std::string key = absl::StrCat("place/", other);
    if (!post_store->check({key})) return std::nullopt;
    const Json json = Json::parse(post_store->get_to_str(key));
    return places[other] = {json.at("host").get<std::string>(), json.at("pid").get<int64_t>()};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

// How often a rank has begun calls of a group, from its status.
static int64_t begun_in(const Json& status, const std::string& group) {
  const auto begun = status.at("begun").find(group);
  return begun == status.at("begun").end() ? 0 : begun->get<int64_t>();
}

std::string Job::State::what_ails(int64_t other, const Activity& mine, bool patient) {
  if (other == rank) return "";
  const auto where = place(other);
  if (!where) return patient ? "" : "it never came to this job";
  try {
    std::lock_guard lock(post_mutex);
    const std::string left = absl::StrCat("left/", other);
    if (post_store->check({left})) {
      // On a device its part may be done, and this rank's not.
      if (begun_in(Json::parse(post_store->get_to_str(left)), mine.group) >= mine.sequence) return "";
      return "it has left: its program ended its use of the job";
    }
  } catch (const std::exception&) {
  }
  static const std::string here = host_name();
  if (where->host != here) return "";
  const std::string state = process_state(where->pid);
  if (state.empty() || state == "Z" || state == "X") {
    return absl::StrCat("its process ", where->pid, " is gone: it was killed, crashed or ended without notice");
  }
  if (!patient && state == "T") return absl::StrCat("its process ", where->pid, " is stopped (SIGSTOP, or a debugger)");
  return "";
}

std::optional<std::pair<int64_t, std::string>> Job::State::find_missing(const Activity& mine,
                                                                        absl::Span<const int64_t> members) {
  int64_t probe = 0;
  try {
    std::lock_guard lock(post_mutex);
    probe = post_store->add("probe", 1);
  } catch (const std::exception& e) {
    return std::nullopt;
  }
  const auto until = Clock::now() + kAnswer;
  for (int64_t other : members) {
    if (other == rank) continue;
    const std::string key = absl::StrCat("status/", probe, "/", other);
    for (;;) {
      try {
        std::lock_guard lock(post_mutex);
        if (post_store->check({key})) {
          const Json json = Json::parse(post_store->get_to_str(key));
          if (begun_in(json, mine.group) >= mine.sequence) break;
          std::string text = absl::StrCat("it has not come to ", mine.what, ", within ",
                                          seconds_text(timeout));
          const auto last = json.at("last").find(mine.group);
          if (last != json.at("last").end()) {
            absl::StrAppend(&text, "; its last one there was ", last->get<std::string>());
          }
          if (json.at("active").get<bool>()) absl::StrAppend(&text, "; it waits in ", json.at("what").get<std::string>());
          return std::make_pair(other, text);
        }
      } catch (const std::exception&) {
        return std::nullopt;
      }
      if (Clock::now() >= until) {
        return std::make_pair(other, std::string("it does not answer: its process is gone, stopped, or out of reach"));
      }
      std::this_thread::sleep_for(Milliseconds(10));
    }
  }
  return std::nullopt;
}

std::string Job::State::accuse(const Activity& mine, absl::Span<const int64_t> members, const std::string& error,
                               bool overdue) {
  // The one who failed knows best why.
  for (const auto until = Clock::now() + kGrace; !failed.load() && Clock::now() < until;) {
    std::this_thread::sleep_for(Milliseconds(10));
  }
  if (failed.load()) return failure_text();
  for (int64_t other : members) {
    if (const std::string ailment = what_ails(other, mine, /*patient=*/false); !ailment.empty()) {
      return post_failure(other, absl::StrCat(ailment, ", while rank ", rank, " waited in ", mine.what));
    }
  }
  if (overdue) {
    if (const auto missing = find_missing(mine, members)) return post_failure(missing->first, missing->second);
  }
  return post_failure(rank, absl::StrCat(mine.what, ": ", error));
}

void Job::State::begin(const Activity& next) {
  std::lock_guard lock(mutex);
  activity = next;
  begun[next.group] = next.sequence;
  last[next.group] = next.what;
}

bool Job::State::any_gone(const Activity& mine, absl::Span<const int64_t> members) {
  return std::any_of(members.begin(), members.end(),
                     [&](int64_t m) { return !what_ails(m, mine, /*patient=*/true).empty(); });
}

// Takes what is done off the list, and accuses whoever keeps the first of the rest waiting.
void Job::State::look_at_devices(Clock::time_point& look_again) {
  std::vector<std::shared_ptr<DeviceGroup>> groups;
  std::shared_ptr<Launched> first;
  const auto next = [&] {
    std::lock_guard lock(mutex);
    groups = device_groups;
    first = launched.empty() ? nullptr : launched.front();
  };
  for (next(); first; next()) {
    try {
      if (!first->done()) break;
    } catch (const std::exception& e) {
      accuse(first->activity, first->members, message_of(e), /*overdue=*/false);
      return;
    }
    std::lock_guard lock(mutex);
    launched.pop_front();
  }
  for (const auto& group : groups) {
    const std::string error = group->error();
    if (error.empty()) continue;
    const Activity nowhere{"", 0, "a group of ranks " + absl::StrJoin(group->members, ",")};
    accuse(first ? first->activity : nowhere, group->members, error, /*overdue=*/false);
    return;
  }
  const auto now = Clock::now();
  if (!first) return;
  if (now - first->begin >= timeout) {
    accuse(first->activity, first->members, absl::StrCat("not done within ", seconds_text(timeout)), /*overdue=*/true);
  } else if (now >= look_again) {
    look_again = now + Milliseconds(1000);
    if (any_gone(first->activity, first->members)) accuse(first->activity, first->members, "a rank is gone", /*overdue=*/false);
  }
}

void Job::State::watch_devices() {
  auto look_again = Clock::now() + Milliseconds(1000);
  for (;;) {
    {
      std::unique_lock lock(mutex);
      stopping.wait_for(lock, launched.empty() ? kPoll : kDevicePoll, [&] { return stop || failed.load(); });
      if (failed.load()) break;
      if (stop) return;
    }
    try {
      look_at_devices(look_again);
    } catch (const std::exception& e) {
      post_failure(rank, message_of(e));
    }
  }
  std::vector<std::shared_ptr<DeviceGroup>> groups;
  {
    std::lock_guard lock(mutex);
    groups = device_groups;
    launched.clear();
  }
  // At once: to free what one group has, CUDA may wait for what another still runs on the same device.
  std::vector<std::thread> aborts;
  for (const auto& group : groups) {
    aborts.emplace_back([group] {
      try {
        group->abort();
      } catch (const std::exception&) {
        // The failure is known already; this group's work may go on until the process ends.
      }
    });
  }
  for (std::thread& abort : aborts) abort.join();
}

Job::Job(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, Milliseconds timeout)
    : state_(std::make_shared<State>(std::move(store), rank, size, timeout)) {
  ignore_broken_pipes();
  const Json place = {{"host", host_name()}, {"pid", ::getpid()}};
  state_->store->set(absl::StrCat("place/", rank), place.dump());
  tell_others_on_terminate();
  prepare_flight_recorder(rank, timeout);
  {
    std::lock_guard lock(jobs_mutex());
    live_jobs().push_back(this);
  }
  state_->watcher = std::thread([state = state_.get()] { state->watch(); });
}

Job::~Job() {
  {
    std::lock_guard lock(jobs_mutex());
    auto& jobs = live_jobs();
    jobs.erase(std::remove(jobs.begin(), jobs.end(), this), jobs.end());
  }
  if (std::uncaught_exceptions() > 0) fail("an exception ended its program");
  try {
    std::lock_guard lock(state_->post_mutex);
    state_->post_store->set(absl::StrCat("left/", state_->rank), state_->status());
  } catch (const std::exception&) {
  }
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->stopping.notify_all();
  state_->watcher.join();
  if (!state_->device_watcher.joinable()) return;
  bool ended = false;
  {
    std::unique_lock lock(state_->mutex);
    ended = state_->stopping.wait_for(lock, kAbort, [&] { return state_->devices_ended; });
  }
  // An abort that does not end shares the state with nobody else, and ends with the process.
  ended ? state_->device_watcher.join() : state_->device_watcher.detach();
}

int64_t Job::rank() const { return state_->rank; }
int64_t Job::size() const { return state_->size; }
Milliseconds Job::timeout() const { return state_->timeout; }
const c10::intrusive_ptr<c10d::Store>& Job::store() const { return state_->store; }

bool Job::one_host() const {
  Activity activity{"", 0, "the meeting of all ranks"};
  std::vector<int64_t> all;
  for (int64_t r = 0; r < size(); ++r) all.push_back(r);
  const auto deadline = Clock::now() + timeout();
  const std::string here = host_name();
  bool one = true;
  for (int64_t r : all) {
    auto place = state_->place(r);
    while (!place) {
      check();
      if (Clock::now() >= deadline) {
        std::vector<int64_t> missing;
        for (int64_t other : all) {
          if (!state_->place(other)) missing.push_back(other);
        }
        throw_failure(state_->post_failure(
            missing.empty() ? rank() : missing[0],
            absl::StrCat("of ", size(), " ranks, rank", missing.size() == 1 ? " " : "s ", absl::StrJoin(missing, ", "),
                         " did not come within ", seconds_text(timeout()), "; start as many processes as the world has ranks")));
      }
      std::this_thread::sleep_for(Milliseconds(5));
      place = state_->place(r);
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
        state_->blame(activity, members, absl::StrCat("not done within ", seconds_text(timeout())), /*overdue=*/true);
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
    state_->blame(begun.activity, begun.members, message_of(e), /*overdue=*/Clock::now() - since >= timeout());
  }
  const bool overdue = Clock::now() - since >= timeout();
  state_->blame(begun.activity, begun.members, absl::StrCat("not done within ", seconds_text(timeout())), overdue);
}

void Job::run(Activity activity, absl::Span<const int64_t> members,
              const std::function<c10::intrusive_ptr<c10d::Work>()>& start) {
  finish(*begin(std::move(activity), members, start));
}

void Job::launch(Activity activity, absl::Span<const int64_t> members,
                 const std::function<std::function<bool()>()>& start) {
  check();
  state_->begin(activity);
  auto launched = std::make_shared<State::Launched>();
  launched->activity = std::move(activity);
  launched->members.assign(members.begin(), members.end());
  launched->begin = Clock::now();
  try {
    const WithoutScope without;
    launched->done = start();
  } catch (const std::exception& e) {
    state_->blame(launched->activity, members, message_of(e), /*overdue=*/Clock::now() - launched->begin >= timeout());
  }
  std::lock_guard lock(state_->mutex);
  state_->launched.push_back(std::move(launched));
}

void Job::watch_group(std::vector<int64_t> members, std::function<std::string()> error, std::function<void()> abort) {
  auto group = std::make_shared<State::DeviceGroup>();
  *group = {std::move(members), std::move(error), std::move(abort)};
  std::lock_guard lock(state_->mutex);
  state_->device_groups.push_back(std::move(group));
  if (state_->device_watcher.joinable()) return;
  state_->device_watcher = std::thread([state = state_] {
    state->watch_devices();
    {
      std::lock_guard lock(state->mutex);
      state->devices_ended = true;
    }
    state->stopping.notify_all();
  });
}

}  // namespace dtensor
