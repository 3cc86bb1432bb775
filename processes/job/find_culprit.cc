#include "processes/job/find_culprit.h"

#include <exception>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "processes/job/host_process.h"

namespace dtensor {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kAnswer{1500};  // how long a rank may take to say what it is doing

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
          std::string text = absl::StrCat("it has not come to ", mine.what, ", within ", seconds_text(waited));
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

}  // namespace dtensor
