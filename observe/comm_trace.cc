#include "observe/comm_trace.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "comm/communicator.h"
#include "observe/rank_in_job.h"
#include "observe/trace_file.h"
#include "plan/cost_model.h"

namespace dtensor {
using namespace internal;

namespace {

using Json = nlohmann::ordered_json;

// Times in the file count from the last multiple of this, a quarter of a year, as in Kineto's traces: a double holds so
// many microseconds to the nanosecond, and all ranks count from the same moment.
constexpr int64_t kBaseNs = 7889238 * int64_t{1000000000};
constexpr int64_t kPlannedRow = 1 << 20;  // no thread has this number

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The name that c10d gives to a collective, which analysers of traces look for.
std::string kineto_name(Collective c, bool split) {
  switch (c) {
    case Collective::kAllReduce:
      return "allreduce";
    case Collective::kAllToAll:
    case Collective::kPermute:
      return split ? "all_to_allv" : "all_to_all";
    default:
      return std::string(to_string(c));
  }
}

// "S(0)R"; between meshes, or where ranks hold boxes, with where that is: "S(0)R @ mesh(dp=2, tp=2)".
std::string placements_text(const LayoutChange& change, const LayoutChange::Side& side) {
  return change.on_one_mesh() ? to_string(*side.placements) : to_string(side);
}

// The documented expansion of CommTrace's path.
std::string path_of(std::string path) {
  const int64_t rank = rank_in_job();
  const size_t place = path.find("%r");
  if (place != std::string::npos) return path.replace(place, 2, absl::StrCat(std::max<int64_t>(rank, 0)));
  if (rank < 0) return path;
  const size_t name = path.rfind('/') == std::string::npos ? 0 : path.rfind('/') + 1;
  const size_t dot = path.rfind('.');
  return path.insert(dot == std::string::npos || dot <= name ? path.size() : dot, absl::StrCat(".", rank));
}

std::string list_text(absl::Span<const int64_t> numbers) {
  return absl::StrCat("[", absl::StrJoin(numbers, ", "), "]");
}

int64_t elements(at::TensorList tensors) {
  int64_t n = 0;
  for (const at::Tensor& t : tensors) n += t.defined() ? t.numel() : 0;
  return n;
}

}  // namespace

class CommTrace::Writer final : public CommListener {
 public:
  explicit Writer(const std::string& path)
      : begin_ns_(now_ns()), base_ns_(begin_ns_ / kBaseNs * kBaseNs), file_(path_of(path), head()) {}

  const std::string& path() const { return file_.path(); }

  void on_comm(const CommEvent&, bool) override {}

  void on_call(const CommEvent& event, const CommView& view, bool before) override {
    if (!before) write(event, view, /*failed=*/false);
  }

  void on_failed(const CommEvent& event, const CommView& view) noexcept override {
    if (event.seconds == 0) return;  // it never ran
    try {
      write(event, view, /*failed=*/true);
    } catch (const std::exception&) {  // out of memory; the failure itself is what matters
    }
  }

 private:
  std::string head() const {
    const Json json = {{"schemaVersion", 1},
                       {"distributedInfo", {{"rank", std::max<int64_t>(rank_in_job(), 0)}}},
                       {"displayTimeUnit", "ms"},
                       {"baseTimeNanoseconds", base_ns_}};
    std::string text = json.dump();
    text.back() = ',';
    return absl::StrCat(text, "\n\"traceEvents\": [");
  }

  void write(const CommEvent& event, const CommView& view, bool failed) {
    const auto& ranks = view.call.ranks;
    const int64_t end_ns = now_ns();
    std::lock_guard lock(mutex_);
    std::string text;
    if (ranks.empty()) {
      if (rank_in_job() >= 0) return;  // a mesh of other processes
      const double seconds = planned_seconds(event, *view.call.group);
      const double begin = microseconds(begin_ns_) + planned_ * 1e6;
      planned_ += seconds;
      add_row(text, 0, kPlannedRow, "planned");
      add(text, event, view, 0, -1, kPlannedRow, begin, seconds * 1e6, failed);
    } else {
      const auto row =
          static_cast<int64_t>(threads_.emplace(std::this_thread::get_id(), threads_.size()).first->second);
      const double begin = microseconds(end_ns) - event.seconds * 1e6;
      for (size_t i = 0; i < ranks.size(); ++i) {
        add_row(text, ranks[i], row, absl::StrCat("thread ", row));
        add(text, event, view, ranks[i], static_cast<int64_t>(i), row, begin, event.seconds * 1e6, failed);
      }
    }
    file_.append(text);
  }

  // Names the row, and the process that its rank is shown as, when they are first used.
  void add_row(std::string& text, int64_t rank, int64_t row, const std::string& name) {
    const auto add = [&](const char* what, Json args) {
      add_event(text, {{"ph", "M"}, {"name", what}, {"pid", rank}, {"tid", row}, {"args", std::move(args)}});
    };
    if (!rows_.emplace(rank, row).second) return;
    add("thread_name", {{"name", name}});
    if (!named_.insert(rank).second) return;
    add("process_name", {{"name", absl::StrCat("rank ", rank)}});
    add("process_sort_index", {{"sort_index", rank}});
  }

  // `slot`: of the rank among the owned ones; -1 if there is no data.
  void add(std::string& text, const CommEvent& event, const CommView& view, int64_t rank, int64_t slot, int64_t row,
           double begin, double duration, bool failed) {
    const RankGroups& group = *view.call.group;
    const auto& members = group.members[slot < 0 ? 0 : group.group_of[rank]];
    Json args;
    std::vector<int64_t> sent, received;
    if (slot >= 0 && !view.messages.empty()) {
      sent.resize(members.size());
      received.resize(members.size());
      for (const Message& m : view.messages) {
        int64_t n = 1;
        for (int64_t size : m.block.sizes) n *= size;
        if (m.sender == rank) sent[group.position_of[m.receiver]] += n;
        if (m.receiver == rank) received[group.position_of[m.sender]] += n;
      }
    }
    const auto uneven = [](const std::vector<int64_t>& v) {
      return !v.empty() && v != std::vector<int64_t>(v.size(), v[0]);
    };
    const bool split = uneven(sent) || uneven(received);
    args["Collective name"] = kineto_name(event.collective, split);
    args["dtype"] = c10::toString(event.dtype);
    if (slot >= 0) {
      const auto of_rank = [&](const RankPieces& pieces) { return pieces.empty() ? 0 : elements(pieces[slot]); };
      args["In msg nelems"] = of_rank(view.inputs);
      args["Out msg nelems"] = of_rank(view.outputs);
    }
    args["In split size"] = list_text(split ? sent : std::vector<int64_t>());
    args["Out split size"] = list_text(split ? received : std::vector<int64_t>());
    args["Group size"] = event.group_size;
    args["Process Group Name"] = ranks_text(members);
    args["Process Group Description"] = event.mesh_dims;
    args["Process Group Ranks"] = list_text(members);
    args["Rank"] = rank;
    if (view.sequence > 0) args["Seq"] = view.sequence;
    if (const LayoutChange* change = event.layout_change.get()) {
      args["tensor"] = to_string(*change, event.more_tensors);
      args["src placements"] = placements_text(*change, change->from());
      args["dst placements"] = placements_text(*change, change->to());
    }
    args["mesh dim"] = event.mesh_dims;
    args["bytes"] = event.bytes;
    args["cause"] = event.cause.implicit ? "implicit" : "explicit";
    args["op"] = event.cause.op;
    args["argument"] = event.cause.argument;
    args["module"] = event.cause.module_path;
    args["phase"] = event.backward ? "backward" : "forward";
    if (failed) args["failed"] = true;
    const std::string name(to_string(event.collective));
    add_event(text, {{"ph", "X"},
                     {"cat", "communication"},
                     {"name", event.cause.op.empty() ? name : absl::StrCat(event.cause.op, " ", name)},
                     {"pid", rank},
                     {"tid", row},
                     {"ts", begin},
                     {"dur", duration},
                     {"args", std::move(args)}});
  }

  void add_event(std::string& text, const Json& event) {
    absl::StrAppend(&text, first_ ? "\n" : ",\n", event.dump(-1, ' ', false, Json::error_handler_t::replace));
    first_ = false;
  }

  double microseconds(int64_t ns) const { return static_cast<double>(ns - base_ns_) / 1e3; }

  double planned_seconds(const CommEvent& event, const RankGroups& group) {
    // The model in the file that DTENSOR_COST_MODEL names, else the built-in one.
    if (!cost_) cost_ = cost_model(World::abstract(1));
    return cost_->collective(event.collective, group_extent(group, cost_->ranks_per_node), event.bytes);
  }

  const int64_t begin_ns_, base_ns_;
  std::mutex mutex_;  // of all below
  TraceFile file_;
  bool first_ = true;
  std::map<std::thread::id, size_t> threads_;
  std::set<std::pair<int64_t, int64_t>> rows_;
  std::set<int64_t> named_;
  double planned_ = 0;  // seconds of an abstract world so far
  std::shared_ptr<const CostModel> cost_;
};

CommTrace::CommTrace(const std::string& path)
    : writer_(std::make_unique<Writer>(path)), guard_([this](Scope& s) { s.listeners.push_back(writer_.get()); }) {}

CommTrace::~CommTrace() = default;

const std::string& CommTrace::path() const { return writer_->path(); }

// The trace requested by DTENSOR_TRACE. Never destroyed: threads may communicate while the process exits.
struct ProcessTrace {
  ProcessTrace() {
    set_process_listener([]() -> CommListener* {
      const char* path = std::getenv("DTENSOR_TRACE");
      return path != nullptr && *path != '\0' ? new CommTrace::Writer(path) : nullptr;
    });
  }
};

namespace {
const ProcessTrace process_trace;
}  // namespace

}  // namespace dtensor
