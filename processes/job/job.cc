#include "processes/job/job.h"

#include <c10/util/Exception.h>
#include <signal.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/error_message.h"
#include "observe/flight_recorder.h"
#include "observe/rank_in_job.h"
#include "processes/job/find_culprit.h"
#include "processes/job/host_process.h"
#include "processes/job/job_end.h"
#include "processes/job/job_state.h"
#include "processes/job/process_end.h"
#include "processes/job/status_text.h"
#include "processes/job/terminate_handler.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// Version of the messages in the store and between ranks. Raise it when they change.
constexpr int kMessages = 3;

// Gloo writes to sockets whose other end may have died; the signal for that would end the process instead of the call.
void ignore_broken_pipes() {
  struct sigaction now = {};
  if (::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL) ::signal(SIGPIPE, SIG_IGN);
}

// Error: the ranks were not started alike.
void check_setup(JobState& state) {
  const char* debug = std::getenv("DTENSOR_DEBUG");
  const JobBoard::Setup mine{state.rank(), state.size(), debug == nullptr || *debug == '\0' ? "info" : debug,
                             absl::StrCat(kMessages, " with LibTorch ", TORCH_VERSION)};
  JobBoard::Setup first;
  try {
    first = state.board().first_setup(mine);
  } catch (const std::exception& e) {
    throw_failure(state.post_failure(mine.rank, message_of(e)));
  }
  const auto differ = [&](const std::string& what, const std::string& own, const std::string& other) {
    if (own == other) return;
    throw_failure(state.post_failure(mine.rank, absl::StrCat(what, " is ", own, " there, and ", other, " on rank ",
                                                             first.rank, "; start all ranks alike")));
  };
  differ("the number of ranks (WORLD_SIZE)", absl::StrCat(mine.size), absl::StrCat(first.size));
  differ("DTENSOR_DEBUG", mine.debug, first.debug);
  differ("the library's version", mine.version, first.version);
}

}  // namespace

Job::Job(c10::intrusive_ptr<c10d::Store> store, int64_t rank, int64_t size, Milliseconds timeout)
    : process_(::getpid()), state_(std::make_shared<JobState>(std::move(store), rank, size, timeout)) {
  ignore_broken_pipes();
  post_place(*state_->store(), rank);
  const std::string id = agree_on_id(*state_->store());
  install_terminate_handler();
  set_rank_in_job(rank);
  prepare_flight_recorder(timeout);
  add_terminate_callback(this, [this](const std::string& message) { fail(message); });
  add_end_callback(this, [this] {
    leave();
    state_->close("its process is ending: exit() was called");
  });
  absl::Cleanup remove_callbacks = [this] {
    remove_end_callback(this);
    remove_terminate_callback(this);
  };
  state_->start_listening(id, [state = state_.get()] { return status_text(*state); });  // throws without threads
  std::move(remove_callbacks).Cancel();
}

Job::~Job() {
  if (!is_here()) {
    // Threads that are not here may hold its locks, or be to be joined.
    static auto* kept = new std::vector<std::shared_ptr<JobState>>;
    kept->push_back(std::move(state_));
    return;
  }
  remove_end_callback(this);
  remove_terminate_callback(this);
  if (std::uncaught_exceptions() > 0) fail("an exception ended its program");
  leave();
}

void Job::leave() noexcept {
  if (left_.exchange(true)) return;
  try {
    state_->board().post_left(state_->status());
  } catch (const std::exception&) {
  }
  state_->stop_listening();
  state_->devices().stop();
}

void Job::end(const std::vector<GroupCalls>& groups) noexcept {
  try {
    if (left_ || !may_exit_with_0()) return;  // after exit() began, static tensors may still end a world
    end_calls(*state_, groups);
    if (!decides_exit_status_ || !state_->failed() || state_->is_told()) return;
    std::fprintf(stderr, "[dtensor] error: rank %d must not end with status 0, as the job has failed: %s\n",
                 static_cast<int>(rank()), state_->failure_text().c_str());
    deny_exit_with_0();
  } catch (const std::exception&) {
    // The store is gone, and with it what the others say.
  }
}

bool Job::is_here() const noexcept { return ::getpid() == process_; }

void Job::check_process() const {
  TORCH_CHECK(is_here(), "World: process ", ::getpid(), " was forked from process ", process_, ", which is rank ",
              rank(),
              " of the job and alone communicates for it. Let a forked process work on plain tensors, or have "
              "it exec a program");
}

int64_t Job::rank() const { return state_->rank(); }
int64_t Job::size() const { return state_->size(); }
Milliseconds Job::timeout() const { return state_->timeout(); }
const c10::intrusive_ptr<BoundedStore>& Job::store() const { return state_->store(); }

bool Job::one_host() const {
  check_setup(*state_);
  const auto deadline = Clock::now() + timeout();
  const std::string here = host_name();
  const auto place_of = [&](int64_t rank) -> std::optional<JobBoard::Place> {
    try {
      return state_->board().place(rank);
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
  check_process();
  if (state_->failed()) state_->throw_known_failure();
}

bool Job::failed() const noexcept { return state_->failed(); }

void Job::fail_as(int64_t culprit, const std::string& message) noexcept {
  try {
    if (is_here() && !state_->failed()) state_->post_failure(culprit, message);
  } catch (...) {
  }
}

}  // namespace dtensor::internal
