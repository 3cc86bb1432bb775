#include "mesh/world.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <utility>

#include "comm/communicator.h"
#include "comm/nccl.h"
#include "mesh/memory_meter.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr size_t kMostAttachments = 64;  // types, of all worlds together

// By slot, so that look-ups, which happen per operator, need no lock.
class Attachments {
 public:
  Attachments() = default;
  Attachments(const Attachments&) = delete;
  Attachments& operator=(const Attachments&) = delete;

  // Newest first: an attachment may use those that it asked for while it was made.
  ~Attachments() {
    while (!made_.empty()) made_.pop_back();
  }

  void* find(size_t slot) const { return slots_[slot].load(std::memory_order_acquire); }

  void* get(size_t slot, const std::function<std::shared_ptr<void>()>& make) {
    std::lock_guard<std::recursive_mutex> lock(making_);  // recursive: make() may ask for other attachments
    if (void* value = find(slot)) return value;
    made_.push_back(make());
    slots_[slot].store(made_.back().get(), std::memory_order_release);
    return find(slot);
  }

 private:
  std::array<std::atomic<void*>, kMostAttachments> slots_{};
  std::vector<std::shared_ptr<void>> made_;  // guarded by making_
  std::recursive_mutex making_;
};

// Spelled as tensors report it, so that devices can be compared.
c10::Device normalized(c10::Device device) {
  if (device.is_cpu() || device.is_meta()) return c10::Device(device.type());
  return device.has_index() ? device : c10::Device(device.type(), 0);
}

// For World::local. Several GPUs communicate by NCCL if the program has it, else by copies, as all others do.
std::unique_ptr<Communicator> make_communicator(std::vector<c10::Device> devices, bool one_device) {
  const NcclFunctions* nccl = find_nccl_functions();
  if (!one_device && devices[0].is_cuda() && nccl != nullptr) return nccl->make_local_communicator(std::move(devices));
  return make_local_communicator(std::move(devices));
}

// For a world. Every rank takes some bytes in each mesh and group, even without data.
constexpr int64_t kMostRanks = int64_t{1} << 24;

void check_size(int64_t n, const char* who) {
  TORCH_CHECK(n >= 1, who, ": n is ", n, "; a world needs at least 1 rank");
  TORCH_CHECK(n <= kMostRanks, who, ": n is ", n, "; a world has at most ", kMostRanks, " ranks");
}

void check_rank(int64_t n, int64_t rank, const char* who) {
  check_size(n, who);
  TORCH_CHECK(rank >= 0 && rank < n, who, ": rank ", rank, " is outside the world's ranks 0..", n - 1);
}

std::vector<int64_t> iota(int64_t n) {
  std::vector<int64_t> ranks(n);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

namespace {
// Alive while handles or tensors in use are; its end makes the caches release objects that keep the world alive.
struct Use {
  explicit Use(std::shared_ptr<WorldState> state) : state(std::move(state)) {}
  ~Use();
  std::shared_ptr<WorldState> state;
};
}  // namespace

namespace internal {

struct WorldState {
  World::Kind kind;
  std::string name;
  std::vector<c10::Device> devices;  // by rank
  std::vector<int64_t> owned;
  std::shared_ptr<WorldState> data;  // of World::meta(): the world that it is of
  // Destroyed from the last to the first: attachments may use the communicator and hold bytes of the meter.
  MemoryMeter memory;
  std::unique_ptr<Communicator> communicator;
  Attachments attachments;

  std::mutex use_mutex;
  std::weak_ptr<Use> use;                       // guarded by use_mutex
  std::weak_ptr<WorldState> meta;               // of World::meta(). Guarded by use_mutex
  std::vector<std::function<void()>> releases;  // guarded by use_mutex

  WorldState(World::Kind kind, std::string name, std::vector<c10::Device> devices, std::vector<int64_t> owned,
             std::unique_ptr<Communicator> communicator)
      : kind(kind),
        name(std::move(name)),
        devices(std::move(devices)),
        owned(std::move(owned)),
        communicator(std::move(communicator)) {}
};

}  // namespace internal

namespace {

void release_all(WorldState& world) {
  std::vector<std::function<void()>> releases;
  {
    std::lock_guard lock(world.use_mutex);
    releases = world.releases;
  }
  for (const auto& release : releases) release();
}

Use::~Use() { release_all(*state); }

WorldState& checked(const std::shared_ptr<WorldState>& state) {
  TORCH_CHECK(state != nullptr, "World: this handle has no world; make one with World::local(n)");
  return *state;
}

}  // namespace

World World::local(int64_t n, c10::Device device) {
  check_size(n, "World::local");
  return local(std::vector<c10::Device>(n, device));
}

World World::local(std::vector<c10::Device> devices) {
  TORCH_CHECK(!devices.empty(), "World::local: devices is empty; a world needs at least 1 rank");
  check_size(static_cast<int64_t>(devices.size()), "World::local");
  for (c10::Device& device : devices) {
    TORCH_CHECK(device.type() == devices[0].type(), "World::local: devices mix ", devices[0], " and ", device,
                "; all ranks must use one type of device");
    device = normalized(device);
  }
  const auto n = static_cast<int64_t>(devices.size());
  const bool one = std::all_of(devices.begin(), devices.end(), [&](c10::Device d) { return d == devices[0]; });
  auto name = c10::str("local(", n, ", ", one ? devices[0] : c10::Device(devices[0].type()), ")");
  auto communicator = make_communicator(devices, one);
  return World(std::make_shared<WorldState>(Kind::kLocal, std::move(name), std::move(devices), iota(n),
                                            std::move(communicator)))
      .in_use();
}

World World::abstract(int64_t n, c10::DeviceType type) {
  check_size(n, "World::abstract");
  const auto device = normalized(c10::Device(type));
  return World(std::make_shared<WorldState>(Kind::kAbstract, c10::str("abstract(", n, ", ", c10::Device(type), ")"),
                                            std::vector<c10::Device>(n, device), std::vector<int64_t>(),
                                            make_dry_communicator(device)))
      .in_use();
}

World World::meta() const {
  WorldState& state = checked(state_);
  if (is_meta()) return *this;
  std::shared_ptr<WorldState> meta;
  {
    std::lock_guard lock(state.use_mutex);
    meta = state.meta.lock();
    if (!meta) {
      const c10::Device device(c10::DeviceType::Meta);
      meta = std::make_shared<WorldState>(Kind::kAbstract, "meta of " + state.name,
                                          std::vector<c10::Device>(state.devices.size(), device),
                                          std::vector<int64_t>(), make_dry_communicator(device));
      meta->data = state_;
      state.meta = meta;
    }
  }
  return World(std::move(meta)).in_use();
}

bool World::is_meta() const { return checked(state_).data != nullptr; }
World World::with_data() const { return is_meta() ? World(state_->data).in_use() : *this; }

World World::fake(int64_t n, int64_t rank, c10::Device device) {
  check_rank(n, rank, "World::fake");
  device = normalized(device);
  return World(std::make_shared<WorldState>(Kind::kFake, c10::str("fake(", n, ", rank ", rank, ", ", device, ")"),
                                            std::vector<c10::Device>(n, device), std::vector<int64_t>{rank},
                                            make_dry_communicator(device)))
      .in_use();
}

World World::of_process(int64_t n, int64_t rank, c10::Device device, std::string name,
                        std::unique_ptr<Communicator> communicator) {
  check_rank(n, rank, "World::of_process");
  TORCH_CHECK(communicator != nullptr, "World::of_process: communicator is null");
  return World(std::make_shared<WorldState>(Kind::kProcesses, std::move(name),
                                            std::vector<c10::Device>(n, normalized(device)), std::vector<int64_t>{rank},
                                            std::move(communicator)))
      .in_use();
}

World::Kind World::kind() const { return checked(state_).kind; }
int64_t World::size() const { return static_cast<int64_t>(checked(state_).devices.size()); }
const std::vector<int64_t>& World::owned_ranks() const { return checked(state_).owned; }
c10::DeviceType World::device_type() const { return checked(state_).devices[0].type(); }
std::string World::name() const { return checked(state_).name; }
Communicator& World::communicator() const { return *checked(state_).communicator; }
MemoryMeter& World::memory() const { return checked(state_).memory; }

c10::Device World::device(int64_t rank) const {
  TORCH_CHECK(rank >= 0 && rank < size(), "World::device: rank ", rank, " is outside ", name(), ", whose ranks are 0..",
              size() - 1);
  return state_->devices[rank];
}

World World::in_use() const {
  if (use_) return *this;
  WorldState& state = checked(state_);
  World handle = *this;
  std::lock_guard lock(state.use_mutex);
  auto use = state.use.lock();
  if (!use) state.use = use = std::make_shared<Use>(state_);
  handle.use_ = std::move(use);
  return handle;
}

std::shared_ptr<const void> World::use() const { return use_ ? use_ : in_use().use_; }

void World::release_caches() const { release_all(checked(state_)); }

void World::when_unused(std::function<void()> release) const {
  WorldState& state = checked(state_);
  std::lock_guard lock(state.use_mutex);
  state.releases.push_back(std::move(release));
}

[[gnu::hot]] void* World::attachment_at(size_t slot) const { return checked(state_).attachments.find(slot); }

void* World::make_attachment(size_t slot, const std::function<std::shared_ptr<void>()>& make) const {
  return checked(state_).attachments.get(slot, make);
}

size_t internal::slot_of_attachment(std::type_index type) {
  static auto& mutex = *new std::mutex;
  static auto& types = *new std::vector<std::type_index>;
  std::lock_guard lock(mutex);
  auto found = std::find(types.begin(), types.end(), type);
  if (found == types.end()) {
    TORCH_CHECK(types.size() < kMostAttachments, "[World::attachment] ", kMostAttachments,
                " types of attachments are the most that a process may have");
    found = types.insert(found, type);
  }
  return static_cast<size_t>(found - types.begin());
}

}  // namespace dtensor
