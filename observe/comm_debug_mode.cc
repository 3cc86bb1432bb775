#include "observe/comm_debug_mode.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <tuple>
#include <utility>

#include "comm/reuse_event.h"
#include "comm/work_event.h"

namespace dtensor {
using namespace internal;

namespace {

// PyTorch's names for them: its functional collectives, c10d's operators, and those of its DTensor.
constexpr std::pair<std::string_view, Collective> kAliases[] = {
    {"all_gather_into_tensor", Collective::kAllGather},
    {"all_gather_into_tensor_coalesced", Collective::kAllGather},
    {"_allgather_base_", Collective::kAllGather},
    {"allgather_", Collective::kAllGather},
    {"all_reduce_coalesced", Collective::kAllReduce},
    {"allreduce_", Collective::kAllReduce},
    {"reduce_scatter_tensor", Collective::kReduceScatter},
    {"reduce_scatter_tensor_coalesced", Collective::kReduceScatter},
    {"_reduce_scatter_base_", Collective::kReduceScatter},
    {"reduce_scatter_", Collective::kReduceScatter},
    {"all_to_all_single", Collective::kAllToAll},
    {"shard_dim_alltoall", Collective::kAllToAll},
    {"alltoall_", Collective::kAllToAll},
    {"alltoall_base_", Collective::kAllToAll},
    {"broadcast_", Collective::kBroadcast},
    {"scatter_", Collective::kScatter},
    {"gather_", Collective::kGather},
    {"permute_tensor", Collective::kPermute},
};

auto order_of(const CommRow& r) {
  return std::tie(r.backward, r.module_path, r.op, r.argument, r.mesh_dims, r.collective, r.implicit);
}
auto order_of(const ReuseRow& r) { return std::tie(r.backward, r.module_path, r.op, r.argument, r.saved); }

// The row of `rows`, which are sorted, that has all but the sums in common with `row`; added if there is none.
template <typename Row>
Row& row_like(std::vector<Row>& rows, Row row) {
  const auto at = std::lower_bound(rows.begin(), rows.end(), row,
                                   [](const Row& a, const Row& b) { return order_of(a) < order_of(b); });
  return at != rows.end() && order_of(*at) == order_of(row) ? *at : *rows.insert(at, std::move(row));
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
    CommRow& found = row_like(rows_, std::move(row));
    ++found.count;
    found.bytes += event.bytes;
    found.seconds += event.seconds;
    if (events_.size() < kMaxEvents) events_.push_back(event);
  }

  void on_reuse(const ReuseEvent& event) override {
    const CommCause& cause = event.cause;
    std::lock_guard lock(mutex_);
    ReuseRow& found =
        row_like(reused_, ReuseRow{event.backward, cause.module_path, cause.op, cause.argument, event.saved});
    ++found.count;
    found.bytes += event.bytes;
  }

  bool wants_reuse() const override { return true; }

  void on_work(const WorkEvent& event) override {
    std::lock_guard lock(mutex_);
    flops_ += event.flops;
    even_flops_ += event.whole_flops / static_cast<double>(event.ranks);
  }

  void reset() {
    std::lock_guard lock(mutex_);
    rows_.clear();
    reused_.clear();
    events_.clear();
    flops_ = even_flops_ = 0;
  }

  double flops() const {
    std::lock_guard lock(mutex_);
    return flops_;
  }

  double work_share() const {
    std::lock_guard lock(mutex_);
    return even_flops_ > 0 ? flops_ / even_flops_ : 1;
  }

  std::vector<CommRow> rows() const {
    std::lock_guard lock(mutex_);
    return rows_;
  }

  std::vector<ReuseRow> reused() const {
    std::lock_guard lock(mutex_);
    return reused_;
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
  std::vector<CommRow> rows_;  // these and reused_ are sorted by order_of()
  std::vector<ReuseRow> reused_;
  std::vector<CommEvent> events_;
  double flops_ = 0, even_flops_ = 0;
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

double CommDebugMode::flops() const { return recorder_->flops(); }

double CommDebugMode::work_share() const { return recorder_->work_share(); }

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

int64_t CommDebugMode::reused() const {
  int64_t count = 0;
  for (const ReuseRow& r : recorder_->reused()) count += r.count;
  return count;
}

int64_t CommDebugMode::reused_bytes() const {
  int64_t bytes = 0;
  for (const ReuseRow& r : recorder_->reused()) bytes += r.bytes;
  return bytes;
}

std::vector<ReuseRow> CommDebugMode::reused_rows() const { return recorder_->reused(); }

std::vector<CommRow> CommDebugMode::rows() const { return recorder_->rows(); }

std::vector<CommEvent> CommDebugMode::events() const { return recorder_->events(); }

void CommDebugMode::reset() { recorder_->reset(); }

Collective parse_collective(std::string_view name) {
  std::string_view base = name;
  for (std::string_view prefix : {"c10d_functional.", "_c10d_functional.", "c10d_functional::", "_c10d_functional::",
                                  "c10d.", "c10d::", "_dtensor.", "_dtensor::"}) {
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
  TORCH_CHECK_VALUE(false, "'", std::string(name), "' is no collective; known: ", known,
                    ", and PyTorch's names such as ",
                    "all_gather_into_tensor, reduce_scatter_tensor, all_to_all_single");
}

}  // namespace dtensor
