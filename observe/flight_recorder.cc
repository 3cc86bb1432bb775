#include "observe/flight_recorder.h"

#include <c10/util/ApproximateClock.h>
#include <c10/util/Exception.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "comm/call_recorder.h"
#include "comm/communicator.h"
#include "observe/flight_ring.h"

namespace dtensor::internal {
namespace {

constexpr size_t kMostTensors = 16;  // of which an entry keeps the shapes
constexpr int64_t kMostEntries = 1 << 24;
// For groups known by address. When there are more all are dropped, as most of them belong to meshes that have ended.
constexpr size_t kMostAddresses = 4096;

// Ticks of the processor's counter, which takes a fifth of the time that a clock does; dumps convert them to time.
int64_t ticks() { return static_cast<int64_t>(c10::getApproximateTime()); }

int64_t thread_id() {
  static thread_local const int64_t id = ::syscall(SYS_gettid);
  return id;
}

struct Recorder {
  explicit Recorder(int64_t size) : entries(static_cast<size_t>(size)) {}

  std::mutex mutex;  // of all below
  c10::ApproximateClockToUnixTimeConverter clock;
  std::vector<FlightRecord> entries;
  uint64_t last = 0;
  int64_t groups = 0;
  std::array<int64_t, 2> communicators{};  // that own one rank; several
  std::vector<std::weak_ptr<FlightGroup>> live_groups;

  FlightRecord& at(uint64_t id) { return entries[id % entries.size()]; }
};

int64_t recorder_size() {
  const char* text = std::getenv("DTENSOR_FLIGHT_RECORDER");
  int64_t size = 2000;
  if (text == nullptr || *text == '\0') return size;
  TORCH_CHECK_VALUE(absl::SimpleAtoi(text, &size) && size >= 0 && size <= kMostEntries, "DTENSOR_FLIGHT_RECORDER is \"",
                    text, "\"; it must be how many collectives to remember, 0 for none, at most ", kMostEntries);
  return size;
}

// Null if nothing is recorded. Never destroyed: threads may communicate, and signals come, while the process exits.
Recorder* recorder() {
  static Recorder* const instance = [] {
    const int64_t size = recorder_size();
    return size > 0 ? new Recorder(size) : nullptr;
  }();
  return instance;
}

void keep_tensors(FlightRecord& entry, at::TensorList tensors) {
  for (size_t i = 0; i < std::min(tensors.size(), kMostTensors); ++i) {
    const at::Tensor& t = tensors[i];
    if (!t.defined()) continue;
    const auto sizes = t.sizes();
    entry.sizes.push_back(static_cast<int64_t>(sizes.size()));
    entry.sizes.insert(entry.sizes.end(), sizes.begin(), sizes.end());
    entry.dtypes.push_back(t.scalar_type());
  }
}

// The groups of one communicator, and how often each was called.
class FlightGroups final : public CallRecorder {
 public:
  std::shared_ptr<CallRecord> record(const CommView& view, bool backward, bool runs) override;

 private:
  // The group of the first owned rank, which stands for those of the others in one process. Under the ring's mutex.
  std::shared_ptr<FlightGroup>& of(const CommCall& call);
  std::string name_of(const std::vector<int64_t>& members, bool several);

  // A group is looked up by address first, and its ranks are compared: the mesh may have ended, and another group may
  // lie at its address.
  absl::flat_hash_map<const RankGroups*, std::shared_ptr<FlightGroup>> by_address_;
  absl::flat_hash_map<std::vector<int64_t>, std::shared_ptr<FlightGroup>> by_ranks_;
  int64_t number_ = 0;  // among the communicators of its kind; 0: none yet
};

// An entry of the ring, while its collective runs. One that never ran is taken back.
class FlightEntry final : public CallRecord {
 public:
  FlightEntry(uint64_t id, int64_t sequence) : id_(id), sequence_(sequence) {}
  ~FlightEntry() override;
  FlightEntry(const FlightEntry&) = delete;
  FlightEntry& operator=(const FlightEntry&) = delete;

  int64_t sequence() const override { return sequence_; }
  void started() override;
  void completed() override;
  void not_awaited() override;

 private:
  const uint64_t id_;  // in the ring
  const int64_t sequence_;
  bool completed_ = false;
};

std::string FlightGroups::name_of(const std::vector<int64_t>& members, bool several) {
  Recorder& r = *recorder();
  if (number_ == 0) number_ = ++r.communicators[several];
  // All processes must give a group the same name, however many in-process worlds one of them has made: these are
  // counted on their own.
  std::string name = ranks_text(members);
  if (several) absl::StrAppend(&name, " in process");
  if (number_ > 1) absl::StrAppend(&name, " of world ", number_);
  return name;
}

std::shared_ptr<FlightGroup>& FlightGroups::of(const CommCall& call) {
  const auto& members = call.group->members[call.group->group_of[call.ranks[0]]];
  auto& near = by_address_[call.group];
  if (near && near->ranks == members) return near;
  auto& group = by_ranks_[members];
  if (!group) {
    Recorder& r = *recorder();
    group = std::make_shared<FlightGroup>();
    group->id = r.groups++;
    group->name = name_of(members, call.ranks.size() > 1);
    group->description = call.group->name;
    group->ranks = members;
    group->in_process = call.ranks.size() > 1;
    auto& live = r.live_groups;
    if (live.size() == live.capacity()) {
      live.erase(std::remove_if(live.begin(), live.end(), [](const auto& g) { return g.expired(); }), live.end());
    }
    live.push_back(group);
  }
  if (by_address_.size() > kMostAddresses) {
    by_address_.clear();
    return by_address_[call.group] = group;
  }
  return near = group;
}

std::shared_ptr<CallRecord> FlightGroups::record(const CommView& view, bool backward, bool runs) {
  Recorder* r = recorder();
  if (r == nullptr || view.call.ranks.empty()) return nullptr;
  static const bool armed = (arm_flight_signals(), true);
  static_cast<void>(armed);
  const CommEvent& event = view.call.event;
  const int64_t now = ticks();
  std::lock_guard lock(r->mutex);
  const std::shared_ptr<FlightGroup>& group = of(view.call);
  FlightRecord& entry = r->at(r->last + 1);
  entry.id = 0;  // the entry counts as empty until all fields are set, as an allocation may throw
  entry.group = group;
  entry.collective = view.collective;
  entry.created = now;
  entry.started = runs ? now : 0;
  entry.completed = 0;
  entry.retired = entry.taken_back = false;
  entry.awaited = true;
  entry.backward = backward;
  entry.implicit = event.cause.implicit;
  entry.rank = view.call.ranks[0];
  entry.thread = thread_id();
  entry.bytes = event.bytes;
  entry.dtype = event.dtype;
  entry.op = event.cause.op;
  entry.argument = event.cause.argument;
  entry.module_path = event.cause.module_path;
  entry.mesh_dims = view.call.group->name;
  entry.layout_change = event.layout_change;
  entry.more_tensors = event.more_tensors;
  entry.sizes.clear();
  entry.dtypes.clear();
  if (!view.inputs.empty()) keep_tensors(entry, view.inputs[0]);
  entry.inputs = entry.dtypes.size();
  if (!view.outputs.empty()) keep_tensors(entry, view.outputs[0]);
  entry.sequence = ++group->enqueued;
  if (runs) group->started = entry.sequence;
  entry.id = ++r->last;
  return std::make_shared<FlightEntry>(entry.id, entry.sequence);
}

void FlightEntry::started() {
  Recorder& r = *recorder();
  const int64_t now = ticks();
  std::lock_guard lock(r.mutex);
  FlightRecord& entry = r.at(id_);
  if (entry.id != id_) return;  // a later call has its place in the ring
  entry.started = now;
  entry.group->started = std::max(entry.group->started, entry.sequence);
}

void FlightEntry::completed() {
  completed_ = true;
  Recorder& r = *recorder();
  const int64_t now = ticks();
  std::lock_guard lock(r.mutex);
  FlightRecord& entry = r.at(id_);
  if (entry.id != id_) return;
  entry.completed = now;
  entry.retired = true;
  entry.group->completed = std::max(entry.group->completed, entry.sequence);
}

void FlightEntry::not_awaited() {
  Recorder& r = *recorder();
  std::lock_guard lock(r.mutex);
  FlightRecord& entry = r.at(id_);
  if (entry.id == id_) entry.awaited = false;
}

FlightEntry::~FlightEntry() {
  if (completed_) return;
  Recorder& r = *recorder();
  std::lock_guard lock(r.mutex);
  FlightRecord& entry = r.at(id_);
  if (entry.id != id_) return;
  entry.retired = true;
  if (entry.started != 0) return;
  // It never ran, so the next call of the group gets its number.
  entry.taken_back = true;
  if (entry.group->enqueued == entry.sequence) --entry.group->enqueued;
}

// Set before main(), as a communicator asks for its recorder when it is made.
[[maybe_unused]] const bool set =
    (set_call_recorder([] { return std::unique_ptr<CallRecorder>(std::make_unique<FlightGroups>()); }), true);

}  // namespace

bool flight_recorder_is_on() { return recorder() != nullptr; }

bool copy_flight_ring(bool wait, std::vector<FlightRecord>& records, std::vector<FlightGroup>& groups) {
  Recorder* r = recorder();
  if (r == nullptr) return true;
  std::unique_lock lock(r->mutex, std::defer_lock);
  if (wait) {
    lock.lock();
  } else {
    for (int i = 0; !lock.try_lock(); ++i) {
      if (i == 1000) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  const auto unix_ns = r->clock.makeConverter();
  const uint64_t size = r->entries.size();
  for (uint64_t id = r->last > size ? r->last - size + 1 : 1; id <= r->last; ++id) {
    if (r->at(id).id != id || r->at(id).taken_back) continue;
    FlightRecord& record = records.emplace_back(r->at(id));
    for (int64_t* time : {&record.created, &record.started, &record.completed}) {
      if (*time != 0) *time = unix_ns(static_cast<c10::approx_time_t>(*time));
    }
  }
  for (const auto& weak : r->live_groups) {
    if (const auto group = weak.lock()) groups.push_back(*group);
  }
  lock.unlock();
  for (FlightRecord& record : records) {
    if (record.layout_change) record.tensor = to_string(*record.layout_change, record.more_tensors);
  }
  return true;
}

}  // namespace dtensor::internal
