#include "processes/job/job_end.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "processes/job/find_culprit.h"
#include "processes/job/job_state.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kWait{10000};  // for the other ranks
constexpr Milliseconds kFirstLookAtOthers{300},
    kLookAtOthers{1000};  // first and later checks on the ranks still missing

// Fails the job if it is certain that the members do not all end after as many calls.
void check_members(JobState& state, const GroupCalls& mine) {
  std::vector<int64_t> calls;
  std::string text;
  for (int64_t member : mine.members) {
    std::optional<RankStatus> status;
    if (member == state.rank()) {
      status = state.status();
    } else if (!(status = state.board().left(member))) {
      const Activity end{mine.group, mine.calls, ""};
      const std::string fault = find_fault(state.board(), member, end, /*only_final=*/true);
      if (!fault.empty()) {
        state.post_failure(member,
                           absl::StrCat(fault, ", while rank ", state.rank(), " waited for the end of the job"));
      }
      return;
    }
    calls.push_back(member == state.rank() ? mine.calls : status->begun[mine.group]);
    absl::StrAppend(&text, calls.size() > 1 ? "; rank " : " rank ", member, " has made ", calls.back());
    if (calls.back() > 0) absl::StrAppend(&text, ", the last ", status->last[mine.group]);
  }
  if (std::all_of(calls.begin(), calls.end(), [&](int64_t n) { return n == calls[0]; })) return;
  state.post_failure(mine.members[odd_one_out(calls)],
                     absl::StrCat("the ranks have ended after different numbers of calls over ", mine.name, ":", text));
}

}  // namespace

void end_calls(JobState& state, std::vector<GroupCalls> groups) {
  if (state.failed()) return;
  JobBoard& board = state.board();
  board.post_left(state.status());
  for (const GroupCalls& mine : groups) board.post_ended(mine.group, mine.calls);
  const auto begin = Clock::now(), until = begin + std::min(kWait, state.timeout());
  auto look_again = begin + kFirstLookAtOthers;
  for (auto pause = Milliseconds(1); !state.failed() && Clock::now() < until;
       pause = std::min(2 * pause, Milliseconds(50))) {
    const auto all_ended = [&](const GroupCalls& mine) {
      return board.ended(mine.group, mine.calls) == static_cast<int64_t>(mine.members.size());
    };
    groups.erase(std::remove_if(groups.begin(), groups.end(), all_ended), groups.end());
    if (groups.empty()) return;
    if (Clock::now() >= look_again) {
      look_again = Clock::now() + kLookAtOthers;
      for (const GroupCalls& mine : groups) check_members(state, mine);
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace dtensor::internal
