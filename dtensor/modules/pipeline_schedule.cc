#include "dtensor/pipeline_schedule.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "observe/svg.h"

namespace dtensor {
using namespace internal;

namespace {

using Kind = PipelineAction::Kind;
using ActionKey = std::tuple<Kind, int64_t, int64_t>;

ActionKey key_of(const PipelineAction& a) { return {a.kind, a.stage, a.micro_batch}; }

// How texts and pictures show a kind.
struct KindLook {
  const char* name;
  const char* letter;
  const char* colour;
};

KindLook look_of(Kind kind) {
  switch (kind) {
    case Kind::kForward:
      return {"forward", "F", "#7aa6d9"};
    case Kind::kBackward:
      return {"backward", "B", "#8cc084"};
    case Kind::kBackwardInput:
      return {"backward to the input", "I", "#6fc2b4"};
    case Kind::kBackwardWeight:
      return {"backward to the parameters", "W", "#d9b36c"};
  }
  TORCH_CHECK_VALUE(false, "[pipeline schedule] no kind of action has the number ", static_cast<int>(kind));
}

double duration_of(Kind kind, const PipelineTimes& times) {
  switch (kind) {
    case Kind::kForward:
      return times.forward;
    case Kind::kBackward:
      return times.backward;
    case Kind::kBackwardInput:
      return times.backward_input;
    case Kind::kBackwardWeight:
      return times.backward_weight;
  }
  return 0;
}

std::string action_text(const PipelineAction& a) {
  return absl::StrCat(look_of(a.kind).name, " of micro-batch ", a.micro_batch, " in stage ", a.stage);
}

void check_positive(const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 1, "[pipeline schedule] ", name, " is ", value, "; it must be at least 1");
}

PipelineSchedule empty_schedule(std::string name, int64_t ranks, int64_t stages_per_rank, int64_t micro_batches) {
  check_positive("ranks", ranks);
  check_positive("stages_per_rank", stages_per_rank);
  check_positive("micro_batches", micro_batches);
  PipelineSchedule schedule{std::move(name), ranks, ranks * stages_per_rank, micro_batches, {}};
  schedule.actions.resize(static_cast<size_t>(ranks));
  return schedule;
}

// Error: the actions `seen` are not one forward and one backward, split or not, of each micro-batch in each stage.
void check_each_once(const PipelineSchedule& s, const std::set<ActionKey>& seen) {
  for (int64_t stage = 0; stage < s.num_stages; ++stage) {
    for (int64_t m = 0; m < s.num_micro_batches; ++m) {
      const auto has = [&](Kind kind) { return seen.contains({kind, stage, m}); };
      const bool is_split = has(Kind::kBackwardInput) || has(Kind::kBackwardWeight);
      const auto needed = is_split ? std::vector{Kind::kForward, Kind::kBackwardInput, Kind::kBackwardWeight}
                                   : std::vector{Kind::kForward, Kind::kBackward};
      for (const Kind kind : needed) {
        TORCH_CHECK_VALUE(has(kind), "[pipeline schedule] ", s.name, " lacks the ", action_text({kind, stage, m}));
      }
      TORCH_CHECK_VALUE(!is_split || !has(Kind::kBackward), "[pipeline schedule] ", s.name, " has the ",
                        action_text({Kind::kBackward, stage, m}), " twice: as a whole and split");
    }
  }
}

void check_complete(const PipelineSchedule& s) {
  TORCH_CHECK_VALUE(static_cast<int64_t>(s.actions.size()) == s.num_ranks, "[pipeline schedule] ", s.name,
                    " has actions of ", s.actions.size(), " ranks, and num_ranks is ", s.num_ranks);
  std::set<ActionKey> seen;
  for (int64_t r = 0; r < s.num_ranks; ++r) {
    for (const PipelineAction& a : s.actions[r]) {
      TORCH_CHECK_VALUE(
          a.stage >= 0 && a.stage < s.num_stages && a.micro_batch >= 0 && a.micro_batch < s.num_micro_batches,
          "[pipeline schedule] ", s.name, ": there is no ", action_text(a));
      TORCH_CHECK_VALUE(s.rank_of(a.stage) == r, "[pipeline schedule] ", s.name, ": rank ", r, " has the ",
                        action_text(a), ", which is on rank ", s.rank_of(a.stage));
      TORCH_CHECK_VALUE(seen.insert(key_of(a)).second, "[pipeline schedule] ", s.name, " has the ", action_text(a),
                        " twice");
    }
  }
  check_each_once(s, seen);
}

// What others wait for: the gradient of an input may come of a backward that is split or not.
ActionKey result_of(const PipelineAction& a) {
  return {a.kind == Kind::kBackward ? Kind::kBackwardInput : a.kind, a.stage, a.micro_batch};
}

// The results that `a` needs.
std::vector<PipelineAction> needed_by(const PipelineSchedule& s, const PipelineAction& a) {
  if (a.kind == Kind::kBackwardWeight) return {{Kind::kBackwardInput, a.stage, a.micro_batch}};
  std::vector<PipelineAction> needed;
  if (a.kind == Kind::kForward) {
    if (a.stage > 0) needed.push_back({Kind::kForward, a.stage - 1, a.micro_batch});
  } else {
    needed.push_back({Kind::kForward, a.stage, a.micro_batch});
    if (a.stage + 1 < s.num_stages) needed.push_back({Kind::kBackwardInput, a.stage + 1, a.micro_batch});
  }
  return needed;
}

// "F2" or with several stages on a rank "F0.2".
std::string label(const PipelineSchedule& s, const PipelineAction& a) {
  const std::string kind = look_of(a.kind).letter;
  if (s.num_stages == s.num_ranks) return absl::StrCat(kind, a.micro_batch);
  return absl::StrCat(kind, a.stage / s.num_ranks, ".", a.micro_batch);
}

}  // namespace

PipelineTimeline PipelineSchedule::simulate(const PipelineTimes& times) const {
  TORCH_CHECK_VALUE(
      std::min({times.forward, times.backward, times.backward_input, times.backward_weight, times.transfer}) >= 0,
      "[pipeline schedule] a time is negative: forward ", times.forward, ", backward ", times.backward,
      ", backward_input ", times.backward_input, ", backward_weight ", times.backward_weight, ", transfer ",
      times.transfer);
  check_complete(*this);
  PipelineTimeline timeline;
  timeline.ranks.resize(actions.size());
  std::map<ActionKey, double> ends;
  std::vector<size_t> next(actions.size(), 0);
  double work = 0;
  // The time at which `a` may begin on rank `r`; negative: something that it needs has not run.
  const auto earliest = [&](const PipelineAction& a, int64_t r) {
    double begin = timeline.ranks[r].empty() ? 0 : timeline.ranks[r].back().end;
    for (const PipelineAction& needed : needed_by(*this, a)) {
      const auto end = ends.find(result_of(needed));
      if (end == ends.end()) return -1.;
      begin = std::max(begin, end->second + (rank_of(needed.stage) == r ? 0 : times.transfer));
    }
    return begin;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int64_t r = 0; r < num_ranks; ++r) {
      while (next[r] < actions[r].size()) {
        const PipelineAction& a = actions[r][next[r]];
        const double begin = earliest(a, r);
        if (begin < 0) break;
        const double duration = duration_of(a.kind, times);
        timeline.ranks[r].push_back({a, begin, begin + duration});
        ends[result_of(a)] = begin + duration;
        timeline.seconds = std::max(timeline.seconds, begin + duration);
        work += duration;
        ++next[r];
        moved = true;
      }
    }
  }
  for (int64_t r = 0; r < num_ranks; ++r) {
    TORCH_CHECK_VALUE(next[r] == actions[r].size(), "[pipeline schedule] ", name, ": rank ", r,
                      " would wait forever for what the ", action_text(actions[r][next[r]]), " needs");
  }
  if (timeline.seconds > 0) timeline.bubble = 1 - work / (static_cast<double>(num_ranks) * timeline.seconds);
  return timeline;
}

std::vector<PipelineAction> PipelineSchedule::order() const {
  const PipelineTimeline timeline = simulate();
  std::vector<std::pair<double, PipelineAction>> all;
  for (const auto& rank : timeline.ranks) {
    for (const auto& span : rank) all.emplace_back(span.begin, span.action);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PipelineAction> result;
  for (const auto& [begin, action] : all) result.push_back(action);
  return result;
}

int64_t PipelineSchedule::peak_in_flight(int64_t rank) const {
  TORCH_CHECK_VALUE(rank >= 0 && rank < num_ranks, "[pipeline schedule] there is no rank ", rank, "; ", name, " has ",
                    num_ranks);
  int64_t now = 0, peak = 0;
  for (const PipelineAction& a : actions[rank]) {
    if (a.kind == Kind::kForward) ++now;
    if (a.kind == Kind::kBackward || a.kind == Kind::kBackwardWeight) --now;
    peak = std::max(peak, now);
  }
  return peak;
}

std::string PipelineSchedule::to_string() const {
  const PipelineTimeline timeline = simulate();  // forward takes 1, backward 2, its parts 1
  size_t width = 0;
  for (const auto& rank : actions) {
    for (const PipelineAction& a : rank) width = std::max(width, label(*this, a).size());
  }
  std::string text = absl::StrFormat("%s: %d ranks, %d stages, %d micro-batches, bubble %.1f %%\n", name, num_ranks,
                                     num_stages, num_micro_batches, 100 * timeline.bubble);
  for (int64_t r = 0; r < num_ranks; ++r) {
    std::vector<std::string> columns(static_cast<size_t>(timeline.seconds), ".");
    for (const auto& span : timeline.ranks[r]) {
      for (auto column = static_cast<size_t>(span.begin); column < static_cast<size_t>(span.end); ++column) {
        columns[column] = label(*this, span.action);
      }
    }
    absl::StrAppend(&text, "rank ", r, ":");
    for (const std::string& column : columns) absl::StrAppendFormat(&text, " %-*s", static_cast<int>(width), column);
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

std::string PipelineTimeline::to_svg() const {
  constexpr double kWidth = 960, kRow = 28, kLeft = 60;
  const double scale = seconds > 0 ? (kWidth - kLeft) / seconds : 1;
  std::string svg = svg_begin(kWidth, kRow * static_cast<double>(ranks.size()) + 4);
  for (size_t r = 0; r < ranks.size(); ++r) {
    const double top = kRow * static_cast<double>(r) + 2;
    svg += svg_text(2, top + 17, absl::StrCat("rank ", r), "");
    for (const Span& span : ranks[r]) {
      const double left = kLeft + span.begin * scale, width = (span.end - span.begin) * scale;
      const std::string fill = absl::StrCat("fill=\"", look_of(span.action.kind).colour, "\" stroke=\"white\"");
      svg += svg_rect(left, top, width, kRow - 4, fill, action_text(span.action));
      svg += svg_text(left + 3, top + 16, absl::StrCat(span.action.micro_batch), "");
    }
  }
  return svg + "</svg>\n";
}

PipelineSchedule gpipe_schedule(int64_t ranks, int64_t micro_batches) {
  PipelineSchedule schedule = empty_schedule("GPipe", ranks, 1, micro_batches);
  for (int64_t r = 0; r < ranks; ++r) {
    for (int64_t m = 0; m < micro_batches; ++m) schedule.actions[r].push_back({Kind::kForward, r, m});
    for (int64_t m = 0; m < micro_batches; ++m) schedule.actions[r].push_back({Kind::kBackward, r, m});
  }
  return schedule;
}

PipelineSchedule one_f_one_b_schedule(int64_t ranks, int64_t micro_batches) {
  PipelineSchedule schedule = empty_schedule("1F1B", ranks, 1, micro_batches);
  for (int64_t r = 0; r < ranks; ++r) {
    const int64_t ahead = std::min(micro_batches, ranks - r - 1);  // forwards before the first backward's own
    for (int64_t m = 0; m < micro_batches + ahead; ++m) {
      if (m < micro_batches) schedule.actions[r].push_back({Kind::kForward, r, m});
      if (m >= ahead) schedule.actions[r].push_back({Kind::kBackward, r, m - ahead});
    }
  }
  return schedule;
}

PipelineSchedule interleaved_schedule(int64_t ranks, int64_t stages_per_rank, int64_t micro_batches) {
  PipelineSchedule schedule = empty_schedule("interleaved 1F1B", ranks, stages_per_rank, micro_batches);
  const std::string fault = internal::pipeline_schedule_fault(schedule.name, ranks, stages_per_rank, micro_batches);
  TORCH_CHECK_VALUE(fault.empty(), "[interleaved_schedule] ", fault);
  const int64_t total = stages_per_rank * micro_batches;
  for (int64_t r = 0; r < ranks; ++r) {
    // The k-th forward of a rank: `ranks` micro-batches in its first stage, the same in its second, and so on.
    const auto action = [&](Kind kind, int64_t k) {
      const int64_t turn = k / ranks % stages_per_rank;
      const int64_t own_stage = kind == Kind::kForward ? turn : stages_per_rank - 1 - turn;
      return PipelineAction{kind, own_stage * ranks + r, k / (ranks * stages_per_rank) * ranks + k % ranks};
    };
    const int64_t ahead = std::min(total, 2 * (ranks - r - 1) + (stages_per_rank - 1) * ranks);
    for (int64_t k = 0; k < total + ahead; ++k) {
      if (k < total) schedule.actions[r].push_back(action(Kind::kForward, k));
      if (k >= ahead) schedule.actions[r].push_back(action(Kind::kBackward, k - ahead));
    }
  }
  return schedule;
}

PipelineSchedule zero_bubble_schedule(int64_t ranks, int64_t micro_batches) {
  PipelineSchedule schedule = empty_schedule("ZB-H1", ranks, 1, micro_batches);
  for (int64_t r = 0; r < ranks; ++r) {
    auto& actions = schedule.actions[r];
    const int64_t ahead = std::min(micro_batches, ranks - r - 1);  // as in 1F1B
    for (int64_t m = 0; m < micro_batches + ahead; ++m) {
      if (m < micro_batches) actions.push_back({Kind::kForward, r, m});
      if (m >= ahead) actions.push_back({Kind::kBackwardInput, r, m - ahead});
      if (m >= ahead + r) actions.push_back({Kind::kBackwardWeight, r, m - ahead - r});
    }
    for (int64_t m = std::max<int64_t>(0, micro_batches - r); m < micro_batches; ++m)
      actions.push_back({Kind::kBackwardWeight, r, m});
  }
  return schedule;
}

PipelineSchedule make_pipeline_schedule(const std::string& name, int64_t ranks, int64_t stages_per_rank,
                                        int64_t micro_batches) {
  if (name == "interleaved 1F1B") return interleaved_schedule(ranks, stages_per_rank, micro_batches);
  const std::string fault = internal::pipeline_schedule_fault(name, ranks, stages_per_rank, micro_batches);
  TORCH_CHECK_VALUE(fault.empty(), "[make_pipeline_schedule] ", fault);
  if (name == "GPipe") return gpipe_schedule(ranks, micro_batches);
  return name == "1F1B" ? one_f_one_b_schedule(ranks, micro_batches) : zero_bubble_schedule(ranks, micro_batches);
}

std::string internal::pipeline_schedule_fault(const std::string& name, int64_t ranks, int64_t stages_per_rank,
                                              int64_t micro_batches) {
  if (name == "interleaved 1F1B") {
    if (micro_batches % ranks == 0) return "";
    return absl::StrCat("micro_batches is ", micro_batches, "; it must be a multiple of ranks, ", ranks);
  }
  if (name != "GPipe" && name != "1F1B" && name != "ZB-H1")
    return absl::StrCat("no schedule is called '", name, "'; there are GPipe, 1F1B, interleaved 1F1B and ZB-H1");
  if (stages_per_rank == 1) return "";
  return absl::StrCat("stages_per_rank is ", stages_per_rank, "; ", name,
                      " has one stage on each rank, 'interleaved 1F1B' several");
}

}  // namespace dtensor
