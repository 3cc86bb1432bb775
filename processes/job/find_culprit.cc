#include "processes/job/find_culprit.h"

#include <algorithm>
#include <exception>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "processes/job/host_process.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAnswer{1500};  // how long a rank may take to report its activity

// The ranks that have reached the call that a rank waits in, and those that have left the job without it.
struct Arrivals {
  Arrivals(int64_t rank, const Activity& call) : rank(rank), call(call) {}

  // Whether it is known of `member` now. `question`: that it may have answered; 0: none.
  bool look(JobBoard& board, int64_t question, int64_t member) {
    const auto gone = member == rank ? std::nullopt : board.left(member);
    const auto status = gone || member == rank || question == 0 ? gone : board.answer_of(question, member);
    if (member == rank || (status && status->has_begun(call.group, call.sequence))) {
      came.push_back(member);
    } else if (gone) {
      if (left.empty()) {
        const auto it = gone->last.find(call.group);
        last = it == gone->last.end() ? "" : absl::StrCat(", and its last call there was ", it->second);
      }
      left.push_back(member);
    } else {
      return false;
    }
    return true;
  }

  std::pair<int64_t, std::string> blame_who_came() const {
    return {came[0],
            absl::StrCat("it has made a call too many: it waits in ", call.what, ", and ranks ",
                         absl::StrJoin(left, ","), " have left without that call; rank ", left[0], " has left", last)};
  }
  std::pair<int64_t, std::string> blame_who_left() const {
    return {left[0], absl::StrCat("it has left: its program ended its use of the job, while rank ", rank, " waited in ",
                                  call.what, last)};
  }

  const int64_t rank;
  const Activity& call;
  std::vector<int64_t> came, left;
  std::string last;  // the last call of the first rank that left
};

}  // namespace

std::string seconds_text(Milliseconds t) { return absl::StrCat(static_cast<double>(t.count()) / 1000, " s"); }

std::string find_fault(JobBoard& board, int64_t other, const Activity& mine, bool only_final) {
  std::optional<JobBoard::Place> where;
  try {
    where = board.place(other);
  } catch (const std::exception&) {
  }
  if (!where) return only_final ? "" : "it never came to this job";
  try {
    if (const auto left = board.left(other)) {
      // On a device its part may be done, and this rank's not.
      if (left->has_begun(mine.group, mine.sequence)) return "";
      return "it has left: its program ended its use of the job";
    }
  } catch (const std::exception&) {
  }
  static const std::string here = host_name(), numbers = pid_namespace();
  if (where->host != here || where->pid_namespace != numbers) return "";
  return process_fault(where->pid, where->start, only_final);
}

std::optional<std::pair<int64_t, std::string>> find_missing(JobBoard& board, absl::Span<const int64_t> others,
                                                            const Activity& mine, Milliseconds waited) {
  try {
    const int64_t question = board.ask();
    const auto until = Clock::now() + kAnswer;
    for (int64_t other : others) {
      for (;;) {
        if (const auto status = board.answer_of(question, other)) {
          if (status->has_begun(mine.group, mine.sequence)) break;
          std::string text = absl::StrCat("it did not reach ", mine.what, ", within ", seconds_text(waited));
          const auto last = status->last.find(mine.group);
          if (last != status->last.end()) absl::StrAppend(&text, "; its last one there was ", last->second);
          if (status->active) absl::StrAppend(&text, "; it waits in ", status->what);
          return std::make_pair(other, text);
        }
        if (Clock::now() >= until) {
          return std::make_pair(other,
                                std::string("it does not answer: its process is gone, stopped, or out of reach"));
        }
        std::this_thread::sleep_for(Milliseconds(10));
      }
    }
  } catch (const std::exception&) {  // the store is gone
  }
  return std::nullopt;
}

std::optional<std::pair<int64_t, std::string>> find_leaver(JobBoard& board, absl::Span<const int64_t> members,
                                                           int64_t rank, const Activity& mine) {
  Arrivals arrivals(rank, mine);
  std::vector<int64_t> open(members.begin(), members.end());
  const auto until = Clock::now() + kAnswer;
  try {
    for (int64_t question = 0;; std::this_thread::sleep_for(Milliseconds(10))) {
      open.erase(std::remove_if(open.begin(), open.end(),
                                [&](int64_t member) { return arrivals.look(board, question, member); }),
                 open.end());
      if (arrivals.left.empty()) return std::nullopt;
      if (2 * arrivals.left.size() > members.size()) return arrivals.blame_who_came();
      const bool is_certain = 2 * arrivals.came.size() >= members.size() || open.empty();
      if (is_certain || Clock::now() >= until) return arrivals.blame_who_left();
      if (question == 0) question = board.ask();
    }
  } catch (const std::exception&) {  // the store is gone
  }
  return std::nullopt;
}

int64_t odd_one_out(absl::Span<const int64_t> values) {
  const auto count = [&](int64_t v) { return std::count(values.begin(), values.end(), v); };
  auto odd = static_cast<int64_t>(values.size()) - 1;
  for (int64_t p = 0; p < static_cast<int64_t>(values.size()); ++p) {
    if (count(values[p]) < count(values[odd])) odd = p;
  }
  return odd;
}

}  // namespace dtensor::internal
