#include "sharded/remote_table.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "comm/error_message.h"
#include "sharded/shard_server.h"
#include "sharded/sharded_tensor_state.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

// The present service of a world.
struct CurrentService {
  std::mutex mutex;
  std::weak_ptr<ShardServiceState> state;  // guarded by mutex
  int64_t count = 0;                       // of services so far. Guarded by mutex
};

std::shared_ptr<ShardServiceState> current_service(const World& world) {
  auto& current = world.attachment<CurrentService>();
  std::lock_guard lock(current.mutex);
  return current.state.lock();
}

// This process's tensors with init_rrefs, by number.
struct Table {
  std::mutex mutex;
  std::map<int64_t, ShardedTensorState*> tensors;  // guarded by mutex
  int64_t next = 0;                                // guarded by mutex
};

Table& table() {
  static auto* const t = new Table;
  return *t;
}

}  // namespace

struct ShardServiceState {
  World world;
  std::vector<std::string> names;       // by rank
  std::vector<int64_t> ids;             // by rank
  std::unique_ptr<ShardServer> server;  // between processes
};

ShardService::ShardService(const World& world, std::vector<std::string> names, std::vector<int64_t> ids)
    : state_(std::make_shared<ShardServiceState>()) {
  const ProcessGroup all(world);
  TORCH_CHECK(world.has_data() && world.kind() != World::Kind::kFake,
              "a shard service needs ranks with data, and none answers in ", world.name());
  const auto& owned = world.owned_ranks();
  for (int64_t rank : owned) {
    if (names.size() < owned.size()) names.push_back("worker" + std::to_string(rank));
    if (ids.size() < owned.size()) ids.push_back(rank);
  }
  const auto rank_texts = exchange_texts(all, "ShardService", [&](int64_t rank) {
    const size_t i = std::find(owned.begin(), owned.end(), rank) - owned.begin();
    TORCH_CHECK(current_service(world) == nullptr, "there is a shard service of ", world.name(), " already");
    TORCH_CHECK(names.size() == owned.size() && ids.size() == owned.size(), "names of ", names.size(), " and ids of ",
                ids.size(), " workers for ", owned.size(), " ranks of this process");
    return std::to_string(ids[i]) + " " + names[i];
  });
  state_->world = world.idle();
  for (const std::string& text : rank_texts) {
    const size_t space = text.find(' ');
    state_->ids.push_back(std::stoll(text.substr(0, space)));
    state_->names.push_back(text.substr(space + 1));
    TORCH_CHECK(std::count(state_->names.begin(), state_->names.end(), state_->names.back()) == 1,
                "two workers have the "
                "name '",
                state_->names.back(), "'");
  }
  auto& current = world.attachment<CurrentService>();
  int64_t number = 0;
  {
    std::lock_guard lock(current.mutex);
    number = ++current.count;
  }
  if (world.kind() == World::Kind::kProcesses)
    state_->server = std::make_unique<ShardServer>(world, owned[0], number, &read_shard);
  std::lock_guard lock(current.mutex);
  current.state = state_;
}

ShardService::~ShardService() {
  // The others may still request shards from this process.
  if (state_->server != nullptr && std::uncaught_exceptions() == 0) {
    try {
      check_on_all_ranks(ProcessGroup(state_->world.in_use()), "~ShardService", [](int64_t) {});
    } catch (const std::exception& e) {
      TORCH_WARN("the end of a shard service: ", message_of(e));
    }
  }
}

void check_shard_service(const World& world) {
  const auto service = current_service(world);
  TORCH_CHECK(
      service != nullptr,
      "RPC Framework needs to be initialized using dtensor::sharded::ShardService (torch.distributed.rpc.init_rpc) "
      "if init_rrefs is set to True");
  for (int64_t rank : world.owned_ranks()) {
    TORCH_CHECK_VALUE(
        service->ids[rank] == rank,
        "Default ProcessGroup and RPC ranks must be the same for ShardedTensor, found process group rank: ", rank,
        " and RPC rank: ", service->ids[rank]);
  }
}

void register_shards(const ShardedTensor& t) {
  ShardedTensorState& state = t.state();
  {
    std::lock_guard lock(table().mutex);
    state.id = table().next++;
    table().tensors.emplace(state.id, &state);
  }
  const auto rank_texts = exchange_texts(state.group, "init_rrefs", [&](int64_t) { return std::to_string(state.id); });
  for (const std::string& text : rank_texts) state.ids.push_back(text.empty() ? -1 : std::stoll(text));
}

void forget_shards(int64_t id) noexcept {
  std::lock_guard lock(table().mutex);
  table().tensors.erase(id);
}

int64_t registered_count() {
  std::lock_guard lock(table().mutex);
  return static_cast<int64_t>(table().tensors.size());
}

Shard read_shard(int64_t id, int64_t rank, int64_t index) {
  std::lock_guard lock(table().mutex);  // the tensor stays while it is read
  const auto it = table().tensors.find(id);
  TORCH_CHECK(it != table().tensors.end(), "Could not find sharded_tensor_id: ", id, " of rank ", rank,
              ": the tensor is gone there");
  const ShardedTensorState& state = *it->second;
  const auto& owned = state.group.owned_ranks();
  const size_t slot = std::find(owned.begin(), owned.end(), rank) - owned.begin();
  TORCH_CHECK(slot < owned.size() && index >= 0 && index < static_cast<int64_t>(state.shards[slot].size()), "rank ",
              rank, " has no shard ", index, " of sharded_tensor_id: ", id);
  Shard shard = state.shards[slot][index];
  shard.tensor = shard.tensor.detach().clone();
  return shard;
}

RemoteShard::RemoteShard(World world, int64_t owner, int64_t tensor_id, int64_t index, ShardMetadata metadata)
    : world_(std::move(world)), owner_(owner), tensor_id_(tensor_id), index_(index), metadata_(std::move(metadata)) {}

Shard RemoteShard::to_here() const {
  const auto& owned = world_.owned_ranks();
  if (std::find(owned.begin(), owned.end(), owner_) != owned.end()) return read_shard(tensor_id_, owner_, index_);
  const auto service = current_service(world_);
  TORCH_CHECK(service != nullptr && service->server != nullptr, "[to_here] the shard service of ", world_.name(),
              " has ended");
  return service->server->fetch(owner_, tensor_id_, index_);
}

std::map<int64_t, std::vector<RemoteShard>> ShardedTensor::remote_shards(int64_t rank) const {
  const ShardedTensorState& s = state();
  TORCH_CHECK(s.init_rrefs, "ShardedTensor created with init_rrefs=False, no RRefs to remote shards available");
  std::map<int64_t, std::vector<RemoteShard>> remote;
  std::map<int64_t, int64_t> counts;
  for (const ShardMetadata& shard : s.metadata.shards_metadata) {
    const int64_t owner = rank_of(*shard.placement, s.group.world());
    const int64_t index = counts[owner]++;
    if (owner == rank) continue;
    remote[owner].emplace_back(s.group.world(), owner, s.ids.at(s.group.group_rank(owner)), index, shard);
  }
  return remote;
}

std::map<int64_t, std::vector<RemoteShard>> ShardedTensor::remote_shards() const {
  TORCH_CHECK(init_rrefs(), "ShardedTensor created with init_rrefs=False, no RRefs to remote shards available");
  const auto& ranks = process_group().ranks_of_process();
  TORCH_CHECK_VALUE(ranks.size() == 1, "this process owns ranks ", ranks_text(ranks),
                    ": say from whose point of view, remote_shards(rank)");
  return remote_shards(ranks[0]);
}

int64_t rank_of(const RemoteDevice& placement, const World& world) {
  if (placement.rank()) return *placement.rank();
  TORCH_CHECK_VALUE(placement.worker_name().has_value(), "remote device ", placement.str(),
                    " names no rank: 'rank:<rank>/<device>' or '<workername>/<device>' does");
  const std::string& name = *placement.worker_name();
  const auto service = current_service(world);
  TORCH_CHECK(service != nullptr, "RPC framework needs to be initialized for using worker names: ", name,
              ": make a dtensor::sharded::ShardService");
  const auto at = std::find(service->names.begin(), service->names.end(), name);
  TORCH_CHECK_VALUE(at != service->names.end(), "Invalid worker name: ", name);
  return service->ids[at - service->names.begin()];
}

RankAndDevice validate_remote_device(const ProcessGroup& group, int64_t rank,
                                     const std::optional<RemoteDevice>& placement) {
  TORCH_CHECK_VALUE(placement.has_value(), "remote device is None");
  const int64_t at = rank_of(*placement, group.world());
  TORCH_CHECK_VALUE(!group.contains(rank) || group.contains(at), "Global rank ", at,
                    " does not exist in input process group: ", c10::IntArrayRef(group.ranks()));
  return {at, placement->device()};
}

}  // namespace dtensor::sharded
