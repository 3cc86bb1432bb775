#include "dtensor/comm_debug_mode.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <tuple>
#include <utility>

namespace dtensor {
namespace {

// PyTorch's functional collectives, c10d's, and what its DTensor adds.
constexpr std::pair<std::string_view, Collective> kAliases[] = {
    {"all_gather_into_tensor", Collective::kAllGather},    {"all_gather_into_tensor_coalesced", Collective::kAllGather},
    {"_allgather_base_", Collective::kAllGather},          {"allgather_", Collective::kAllGather},
    {"all_reduce_coalesced", Collective::kAllReduce},      {"allreduce_", Collective::kAllReduce},
    {"reduce_scatter_tensor", Collective::kReduceScatter}, {"reduce_scatter_tensor_coalesced", Collective::kReduceScatter},
    {"_reduce_scatter_base_", Collective::kReduceScatter}, {"reduce_scatter_", Collective::kReduceScatter},
    {"all_to_all_single", Collective::kAllToAll},          {"shard_dim_alltoall", Collective::kAllToAll},
    {"alltoall_", Collective::kAllToAll},                  {"alltoall_base_", Collective::kAllToAll},
    {"broadcast_", Collective::kBroadcast},                {"scatter_", Collective::kScatter},
    {"gather_", Collective::kGather},                      {"permute_tensor", Collective::kPermute},
};

auto order_of(const CommRow& r) {
  return std::tie(r.backward, r.module_path, r.op, r.argument, r.mesh_dims, r.collective, r.implicit);
}

std::string grouped(int64_t n) {  // 12,345
  std::string digits = std::to_string(n);
  for (int64_t i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, ",");
  return digits;
}

}  // namespace

class CommDebugMode::Recorder final : public CommListener {
 public:
  void on_comm(const CommEvent& event, bool before) override {
    if (before) return;
    CommRow row;
    row.backward = event.backward;
    row.module_path = event.cause.module_path;
    row.op = event.cause.op;
    row.argument = event.cause.argument;
    row.mesh_dims = event.mesh_dims;
    row.collective = event.collective;
    row.implicit = event.cause.implicit;
    std::lock_guard lock(mutex_);
    const auto at = std::lower_bound(rows_.begin(), rows_.end(), row,
                                     [](const CommRow& a, const CommRow& b) { return order_of(a) < order_of(b); });
    CommRow& found = at != rows_.end() && order_of(*at) == order_of(row) ? *at : *rows_.insert(at, std::move(row));
    ++found.count;
    found.bytes += event.bytes;
    found.seconds += event.seconds;
    if (events_.size() < kMaxEvents) events_.push_back(event);
  }

  void reset() {
    std::lock_guard lock(mutex_);
    rows_.clear();
    events_.clear();
  }

  std::vector<CommRow> rows() const {
    std::lock_guard lock(mutex_);
    return rows_;
  }

  std::vector<CommEvent> events() const {
    std::lock_guard lock(mutex_);
    return events_;
  }

  template <typename T, typename F>
  T sum(const F& of_row) const {
    std::lock_guard lock(mutex_);
    T total = 0;
    for (const CommRow& r : rows_) total += of_row(r);
    return total;
  }

  template <typename F>
  std::map<std::string, int64_t> counts_by(const F& key) const {
    std::lock_guard lock(mutex_);
    std::map<std::string, int64_t> result;
    for (const CommRow& r : rows_) result[std::string(key(r))] += r.count;
    return result;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<CommRow> rows_;  // sorted by order_of
  std::vector<CommEvent> events_;
};

CommDebugMode::CommDebugMode()
    : recorder_(std::make_unique<Recorder>()),
      guard_(std::make_unique<ScopeGuard>([this](Scope& s) { s.listeners.push_back(recorder_.get()); })) {}

CommDebugMode::~CommDebugMode() = default;

std::map<std::string, int64_t> CommDebugMode::counts() const {
  return recorder_->counts_by([](const CommRow& r) { return dtensor::to_string(r.collective); });
}

int64_t CommDebugMode::total() const {
  return recorder_->sum<int64_t>([](const CommRow& r) { return r.count; });
}

int64_t CommDebugMode::count(Collective collective) const {
  return recorder_->sum<int64_t>([&](const CommRow& r) { return r.collective == collective ? r.count : 0; });
}

int64_t CommDebugMode::count(std::string_view name) const { return count(parse_collective(name)); }

int64_t CommDebugMode::bytes() const {
  return recorder_->sum<int64_t>([](const CommRow& r) { return r.bytes; });
}

int64_t CommDebugMode::bytes(Collective collective) const {
  return recorder_->sum<int64_t>([&](const CommRow& r) { return r.collective == collective ? r.bytes : 0; });
}

double CommDebugMode::seconds() const {
  return recorder_->sum<double>([](const CommRow& r) { return r.seconds; });
}

int64_t CommDebugMode::implicit_count() const {
  return recorder_->sum<int64_t>([](const CommRow& r) { return r.implicit ? r.count : 0; });
}

int64_t CommDebugMode::explicit_count() const {
  return recorder_->sum<int64_t>([](const CommRow& r) { return r.implicit ? 0 : r.count; });
}

int64_t CommDebugMode::forward_count() const {
  return recorder_->sum<int64_t>([](const CommRow& r) { return r.backward ? 0 : r.count; });
}

int64_t CommDebugMode::backward_count() const {
  return recorder_->sum<int64_t>([](const CommRow& r) { return r.backward ? r.count : 0; });
}

std::map<std::string, int64_t> CommDebugMode::counts_by_op() const {
  return recorder_->counts_by([](const CommRow& r) -> const std::string& { return r.op; });
}

std::map<std::string, int64_t> CommDebugMode::counts_by_module() const {
  return recorder_->counts_by([](const CommRow& r) -> const std::string& { return r.module_path; });
}

std::vector<CommRow> CommDebugMode::rows() const { return recorder_->rows(); }

std::vector<CommEvent> CommDebugMode::events() const { return recorder_->events(); }

void CommDebugMode::reset() { recorder_->reset(); }

std::string CommDebugMode::to_json() const {
  nlohmann::ordered_json j;
  const auto rows = this->rows();
  int64_t total = 0, bytes = 0;
  double seconds = 0;
  auto counts = nlohmann::ordered_json::object();
  auto list = nlohmann::ordered_json::array();
  for (const CommRow& r : rows) {
    const std::string name(dtensor::to_string(r.collective));
    total += r.count;
    bytes += r.bytes;
    seconds += r.seconds;
    counts[name] = counts.value(name, int64_t{0}) + r.count;
    list.push_back({{"phase", r.backward ? "backward" : "forward"},
                    {"module", r.module_path},
                    {"op", r.op},
                    {"argument", r.argument},
                    {"collective", name},
                    {"mesh_dims", r.mesh_dims},
                    {"implicit", r.implicit},
                    {"count", r.count},
                    {"bytes", r.bytes},
                    {"seconds", r.seconds}});
  }
  auto events = nlohmann::ordered_json::array();
  for (const CommEvent& e : this->events()) {
    events.push_back({{"collective", dtensor::to_string(e.collective)},
                      {"op", e.cause.op},
                      {"argument", e.cause.argument},
                      {"module", e.cause.module_path},
                      {"implicit", e.cause.implicit},
                      {"phase", e.backward ? "backward" : "forward"},
                      {"mesh_dims", e.mesh_dims},
                      {"group_size", e.group_size},
                      {"bytes", e.bytes},
                      {"dtype", c10::toString(e.dtype)},
                      {"seconds", e.seconds}});
  }
  j["total"] = total;
  j["bytes"] = bytes;
  j["seconds"] = seconds;
  j["counts"] = std::move(counts);
  j["rows"] = std::move(list);
  j["events"] = std::move(events);
  return j.dump(2);
}

std::string CommDebugMode::to_string() const {
  std::ostringstream os;
  os << *this;
  return os.str();
}

std::ostream& operator<<(std::ostream& os, const CommDebugMode& mode) {
  const std::vector<CommRow> rows = mode.rows();
  int64_t total = 0, bytes = 0;
  std::array<int64_t, kNumCollectives> by_kind{};
  for (const CommRow& r : rows) {
    total += r.count;
    bytes += r.bytes;
    by_kind[static_cast<size_t>(r.collective)] += r.count;
  }
  os << (total == 1 ? "1 collective" : grouped(total) + " collectives") << ", " << grouped(bytes) << " bytes";
  const char* separator = ": ";
  for (int k = 0; k < kNumCollectives; ++k) {
    if (by_kind[k] == 0) continue;
    os << std::exchange(separator, ", ") << to_string(static_cast<Collective>(k)) << ' ' << by_kind[k];
  }
  os << '\n';
  // Rows are sorted by phase, module, operator: a level's node ends where the next row differs in it.
  const auto same_phase = [](const CommRow& a, const CommRow& b) { return a.backward == b.backward; };
  const auto same_module = [&](const CommRow& a, const CommRow& b) { return same_phase(a, b) && a.module_path == b.module_path; };
  const auto last_of = [&](size_t i, const auto& inside, const auto& same) {  // no later sibling inside the parent
    for (size_t k = i; k < rows.size() && inside(rows[i], rows[k]); ++k) {
      if (!same(rows[i], rows[k])) return false;
    }
    return true;
  };
  const auto everything = [](const CommRow&, const CommRow&) { return true; };
  const auto sum = [&](size_t i, const auto& same) {
    int64_t n = 0;
    for (size_t k = i; k < rows.size() && same(rows[i], rows[k]); ++k) n += rows[k].count;
    return n;
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    const CommRow& r = rows[i];
    const bool last_phase = last_of(i, everything, same_phase);
    const bool last_module = last_of(i, same_phase, same_module);
    if (i == 0 || !same_phase(rows[i - 1], r)) {
      os << (last_phase ? "└─ " : "├─ ") << (r.backward ? "backward" : "forward") << ": " << sum(i, same_phase) << '\n';
    }
    const char* bar = last_phase ? "   " : "│  ";
    if (i == 0 || !same_module(rows[i - 1], r)) {
      os << bar << (last_module ? "└─ " : "├─ ") << (r.module_path.empty() ? "(no module)" : r.module_path) << ": "
         << sum(i, same_module) << '\n';
    }
    const bool last_row = i + 1 == rows.size() || !same_module(r, rows[i + 1]);
    os << bar << (last_module ? "   " : "│  ") << (last_row ? "└─ " : "├─ ") << (r.op.empty() ? "(unnamed)" : r.op);
    if (!r.argument.empty()) os << ' ' << r.argument;
    os << ": " << to_string(r.collective) << '(' << r.mesh_dims << ") x" << r.count << ", " << grouped(r.bytes) << " bytes"
       << (r.implicit ? "" : ", explicit") << '\n';
  }
  return os;
}

Collective parse_collective(std::string_view name) {
  std::string_view base = name;
  for (std::string_view prefix : {"c10d_functional.", "_c10d_functional.", "c10d_functional::", "_c10d_functional::", "c10d.",
                                  "c10d::", "_dtensor.", "_dtensor::"}) {
    if (base.substr(0, prefix.size()) == prefix) {
      base.remove_prefix(prefix.size());
      break;
    }
  }
  std::string known;
  for (int k = 0; k < kNumCollectives; ++k) {
    const auto c = static_cast<Collective>(k);
    if (base == to_string(c)) return c;
    known += (known.empty() ? "" : ", ") + std::string(to_string(c));
  }
  for (const auto& [alias, collective] : kAliases) {
    if (base == alias) return collective;
  }
  TORCH_CHECK_VALUE(false, "'", std::string(name), "' is no collective; known: ", known, ", and PyTorch's names such as ",
                    "all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single");
}

}  // namespace dtensor
