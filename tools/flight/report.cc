#include "tools/flight/report.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "observe/flight_recorder.h"

namespace dtensor::tools {
using namespace internal;

namespace {

// Whether a rank waits in the call, or waited until it failed.
bool waits_in(const std::string& state) { return state != "completed" && state != "not awaited"; }

// One call of one group, by all its ranks.
struct Call {
  std::map<std::string, std::map<std::string, std::vector<int64_t>>> ways;  // what -> state -> ranks
  std::map<std::string, std::set<std::string>> modules;                     // what -> by those ranks that name one
  std::vector<int64_t> here, unreached, forgotten;
  int64_t begin_ns = std::numeric_limits<int64_t>::max();

  bool waits() const {
    return std::any_of(ways.begin(), ways.end(), [](const auto& way) {
      return std::any_of(way.second.begin(), way.second.end(), [](const auto& state) { return waits_in(state.first); });
    });
  }
  // What the ranks of `way` did, for texts.
  std::string text(const std::string& way) const {
    const auto found = modules.find(way);
    return found == modules.end() ? way : absl::StrCat(way, ", ", absl::StrJoin(found->second, " or "));
  }
};

struct GroupView {
  std::string name, description;
  std::vector<int64_t> missing;  // members without a dump
  std::map<int64_t, Call> calls;

  std::string title() const {
    return absl::StrCat("group ", name, description.empty() ? "" : absl::StrCat(" (", description, ")"));
  }
};

std::string ranks_named(const std::vector<int64_t>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", ranks_text(ranks));
}

std::string states_text(const std::map<std::string, std::vector<int64_t>>& states) {
  return absl::StrJoin(
      states, "; ", [](std::string* out, const auto& s) { absl::StrAppend(out, s.first, ": ", ranks_text(s.second)); });
}

std::vector<int64_t> all_of(const std::map<std::string, std::vector<int64_t>>& states) {
  std::vector<int64_t> ranks;
  for (const auto& state : states) ranks.insert(ranks.end(), state.second.begin(), state.second.end());
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// By members, so that what ranks call one thing differently is still one group.
std::vector<GroupView> align(const std::vector<FlightDump>& dumps) {
  std::map<std::pair<std::string, std::vector<int64_t>>, GroupView> groups;
  std::map<int64_t, const FlightDump*> of_rank;
  for (const FlightDump& dump : dumps) of_rank[dump.rank] = &dump;
  for (const FlightDump& dump : dumps) {
    for (const auto& g : dump.groups) {
      const std::string name = g.in_process && dumps.size() > 1 ? absl::StrCat(g.name, ", rank ", dump.rank) : g.name;
      GroupView& view = groups[{name, g.ranks}];
      if (!view.name.empty()) continue;
      view.name = name;
      view.description = g.description;
      const std::vector<int64_t> members = g.in_process ? std::vector<int64_t>{dump.rank} : g.ranks;
      struct Track {
        std::map<int64_t, const FlightCall*> calls;
        int64_t last = 0;
      };
      std::map<int64_t, Track> tracks;
      std::set<int64_t> numbers;
      for (int64_t rank : members) {
        const auto found = of_rank.find(rank);
        if (found == of_rank.end()) {
          view.missing.push_back(rank);
          continue;
        }
        Track& track = tracks[rank];
        for (size_t k = 0; k < found->second->groups.size(); ++k) {
          const auto& theirs = found->second->groups[k];
          if (theirs.name != g.name || theirs.ranks != g.ranks || theirs.in_process != g.in_process) continue;
          track.last = theirs.last;
          for (const FlightCall& call : found->second->calls) {
            if (call.group != k) continue;
            track.calls[call.sequence] = &call;
            track.last = std::max(track.last, call.sequence);
            numbers.insert(call.sequence);
          }
        }
      }
      for (int64_t n : numbers) {
        Call& call = view.calls[n];
        for (const auto& [rank, track] : tracks) {
          const auto at = track.calls.find(n);
          if (at != track.calls.end()) {
            call.ways[at->second->what][at->second->state].push_back(rank);
            if (!at->second->module.empty()) call.modules[at->second->what].insert(at->second->module);
            call.here.push_back(rank);
            call.begin_ns = std::min(call.begin_ns, at->second->created_ns);
          } else {
            (n > track.last ? call.unreached : call.forgotten).push_back(rank);
          }
        }
      }
    }
  }
  std::vector<GroupView> list;
  for (auto& entry : groups) list.push_back(std::move(entry.second));
  return list;
}

void print_table(std::ostream& out, const GroupView& group, int64_t last) {
  const auto count = static_cast<int64_t>(group.calls.size());
  out << "\n" << group.title();
  if (count == 0) {
    out << ": no calls\n";
    return;
  }
  if (count > last) out << ", the last " << last << " calls";
  if (!group.missing.empty()) out << ", no dump of " << ranks_named(group.missing);
  out << "\n";
  struct Line {
    std::string number, states, what;
  };
  std::vector<Line> lines;
  for (auto it = std::next(group.calls.begin(), std::max<int64_t>(0, count - last)); it != group.calls.end(); ++it) {
    std::string number = absl::StrCat(it->first);
    for (const auto& [what, states] : it->second.ways) {
      lines.push_back({std::exchange(number, ""), states_text(states), it->second.text(what)});
    }
    if (!it->second.unreached.empty())
      lines.push_back({"", absl::StrCat("not reached: ", ranks_text(it->second.unreached)), ""});
    if (!it->second.forgotten.empty())
      lines.push_back({"", absl::StrCat("forgotten: ", ranks_text(it->second.forgotten)), ""});
  }
  size_t widest[2] = {};
  for (const Line& line : lines) {
    widest[0] = std::max(widest[0], line.number.size());
    widest[1] = std::max(widest[1], line.states.size());
  }
  for (const Line& line : lines) {
    out << "  " << std::string(widest[0] - line.number.size(), ' ') << line.number << "  " << line.states;
    if (!line.what.empty()) out << std::string(widest[1] - line.states.size(), ' ') << "  " << line.what;
    out << "\n";
  }
}

// The activity of a rank when its dump was written.
std::string whereabouts(const std::vector<GroupView>& groups, int64_t rank, const GroupView& except) {
  std::string text;
  const auto member = [&](const std::vector<int64_t>& ranks) {
    return std::count(ranks.begin(), ranks.end(), rank) > 0;
  };
  for (auto it = except.calls.rbegin(); it != except.calls.rend(); ++it) {
    if (!member(it->second.here)) continue;
    for (const auto& way : it->second.ways) {
      if (member(all_of(way.second)))
        text = absl::StrCat("; its last one there is call ", it->first, ", ", it->second.text(way.first));
    }
    break;
  }
  for (const GroupView& group : groups) {
    for (const auto& [n, call] : group.calls) {
      for (const auto& [what, states] : call.ways) {
        for (const auto& [state, ranks] : states) {
          if (!waits_in(state) || !member(ranks)) continue;
          absl::StrAppend(&text, state == "failed" ? "; it failed in call " : "; it is in call ", n, " over ",
                          group.title(), ", ", call.text(what));
        }
      }
    }
  }
  return text;
}

struct Divergence {
  std::string text;  // "": the ranks agree on the call
  std::vector<int64_t> odd;
};

// `now_ns`: when the first of the dumps was made. What began later, that rank could not have reached.
Divergence divergence(const std::vector<GroupView>& groups, const GroupView& group, int64_t n, const Call& call,
                      const FlightOptions& options, int64_t now_ns) {
  const std::string where = absl::StrCat("call ", n, " over ", group.title());
  if (call.ways.size() > 1) {
    // The many are right.
    std::vector<std::pair<std::vector<int64_t>, std::string>> sides;
    for (const auto& way : call.ways) sides.push_back({all_of(way.second), call.text(way.first)});
    std::stable_sort(sides.begin(), sides.end(),
                     [](const auto& a, const auto& b) { return a.first.size() < b.first.size(); });
    const std::string text = absl::StrJoin(sides, ", while ", [&](std::string* out, const auto& side) {
      absl::StrAppend(out, ranks_named(side.first), " made ", side.second);
    });
    return {absl::StrCat(text, ", as ", where), sides[0].first};
  }
  if (options.late_after_ns > 0 && now_ns - call.begin_ns < options.late_after_ns) return {};
  const std::string what =
      absl::StrCat(call.text(call.ways.begin()->first), " (", states_text(call.ways.begin()->second), ")");
  if (!call.unreached.empty()) {
    return {absl::StrCat(ranks_named(call.unreached), call.unreached.size() == 1 ? " has" : " have", " not reached ",
                         where, ", ", what, whereabouts(groups, call.unreached[0], group)),
            call.unreached};
  }
  if (!group.missing.empty() && call.waits()) {
    return {
        absl::StrCat(ranks_named(group.missing), " ", options.no_dump, ", and the others are in ", where, ", ", what),
        group.missing};
  }
  return {};
}

}  // namespace

FlightReport compare_flights(const std::vector<FlightDump>& dumps, const FlightOptions& options) {
  std::map<int64_t, const FlightDump*> of_rank;
  std::vector<int64_t> ranks;
  for (const FlightDump& dump : dumps) {
    const auto [at, first] = of_rank.emplace(dump.rank, &dump);
    if (!first) throw UsageError(absl::StrCat(at->second->file, " and ", dump.file, " are both of rank ", dump.rank));
    ranks.push_back(dump.rank);
  }
  std::sort(ranks.begin(), ranks.end());
  const std::vector<GroupView> groups = align(dumps);

  std::ostringstream out;
  out << dumps.size() << (dumps.size() == 1 ? " dump, of " : " dumps, of ") << ranks_named(ranks) << "\n";
  Divergence first;
  int64_t first_ns = std::numeric_limits<int64_t>::max(), now_ns = first_ns;
  for (const FlightDump& dump : dumps) now_ns = std::min(now_ns, dump.time_ns);
  for (const GroupView& group : groups) {
    print_table(out, group, options.last);
    for (const auto& [n, call] : group.calls) {
      Divergence found = divergence(groups, group, n, call, options, now_ns);
      if (found.text.empty()) continue;
      if (first.text.empty() || call.begin_ns < first_ns) {
        first = std::move(found);
        first_ns = call.begin_ns;
      }
      break;
    }
  }
  if (first.text.empty()) {
    out << "\nNo divergence: every call is the same on all ranks that remember it.\n";
  } else {
    out << "\nFirst divergence: " << first.text << ".\n";
  }
  return {out.str(), !first.text.empty(), first.odd};
}

}  // namespace dtensor::tools
