// save_shards() and load_shards(): what each rank holds, as bytes.
//
//   a line of JSON   {"format", "version", "entries": [{"name", "sizes": bytes of each shard, "tensor": its metadata,
//   or null
//                    of a plain one}, ...]}
//   the shards       one after the other, shard_bytes.h
#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoint/formats/strict_json.h"
#include "sharded/check_shards.h"
#include "sharded/chunk_sharding_spec.h"
#include "sharded/enumerable_sharding_spec.h"
#include "sharded/remote_table.h"
#include "sharded/shard_bytes.h"
#include "sharded/sharded_tensor_state.h"
#include "sharded/state_dict.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

using Json = nlohmann::json;

constexpr char kShardsFormat[] = "dtensor.shards";
constexpr int64_t kShardsVersion = 1;

thread_local ProcessGroup loading_group;

// -1, -1 for a rank outside the group, as in PyTorch.
struct Place {
  int64_t local_rank = -1, local_size = -1, global_rank = 0, global_size = 1;
};

Place place_of(const ProcessGroup& group, int64_t rank) {
  Place place;
  place.global_rank = rank;
  place.global_size = group.world().size();
  if (group.contains(rank)) {
    place.local_rank = group.group_rank(rank);
    place.local_size = group.size();
  }
  return place;
}

Json json_of(const ShardedTensor& st, int64_t rank) {
  const Place place = place_of(st.process_group(), rank);
  Json json = {{"metadata", serialize(st.metadata())},
               {"local_rank", place.local_rank},
               {"global_rank", place.global_rank},
               {"local_size", place.local_size},
               {"global_size", place.global_size},
               {"init_rrefs", st.init_rrefs()},
               {"chunk_dim", nullptr}};
  if (const auto* chunks = st.sharding_spec().as<ChunkShardingSpec>()) {
    json["chunk_dim"] = chunks->dim();
    json["placements"] = Json::array();
    for (const RemoteDevice& p : chunks->placements()) json["placements"].push_back(p.str());
  }
  return json;
}

std::string save_rank(const NamedTensors& tensors, int64_t rank) {
  Json entries = Json::array();
  std::string blobs;
  for (const auto& [name, t] : tensors) {
    Json sizes = Json::array();
    const auto add = [&](const std::string& bytes) {
      sizes.push_back(bytes.size());
      blobs += bytes;
    };
    Json what = nullptr;
    if (is_sharded(t)) {
      const ShardedTensor st(t);
      what = json_of(st, rank);
      for (const Shard& shard : st.local_shards(rank)) add(to_bytes(shard));
    } else {
      add(to_bytes(t));
    }
    entries.push_back({{"name", name}, {"sizes", std::move(sizes)}, {"tensor", std::move(what)}});
  }
  return Json({{"format", kShardsFormat}, {"version", kShardsVersion}, {"entries", std::move(entries)}}).dump() + "\n" +
         blobs;
}

void check_place(const Json& json, const Place& now) {
  const auto check = [&](const char* what, const char* key, int64_t at_load) {
    const int64_t at_save = json.at(key).get<int64_t>();
    TORCH_CHECK(at_save == at_load, what, " at save time was ", at_save, ", but at load time was ", at_load);
  };
  check("Local rank", "local_rank", now.local_rank);
  check("Global rank", "global_rank", now.global_rank);
  check("Local world size", "local_size", now.local_size);
  check("Global world size", "global_size", now.global_size);
}

struct Entry {
  std::string name;
  bool is_plain = false;
  at::Tensor plain;
  ShardedTensorMetadata metadata;
  AnyShardingSpec spec;
  bool init_rrefs = false;
  std::vector<Shard> shards;
};

Entry entry_of(const Json& json, std::string_view& blobs, const ProcessGroup& group, int64_t rank) {
  Entry entry;
  entry.name = json.at("name").get<std::string>();
  entry.is_plain = json.at("tensor").is_null();
  if (!entry.is_plain) check_place(json.at("tensor"), place_of(group, rank));
  std::vector<std::string_view> pieces;
  for (const size_t size : json.at("sizes").get<std::vector<size_t>>()) {
    TORCH_CHECK(size <= blobs.size(), "damaged: '", entry.name, "' is cut off");
    pieces.push_back(blobs.substr(0, size));
    blobs.remove_prefix(size);
  }
  if (entry.is_plain) {
    TORCH_CHECK(pieces.size() == 1, "damaged: the plain tensor '", entry.name, "' has ", pieces.size(), " pieces");
    entry.plain = tensor_from_bytes(pieces[0]);
    return entry;
  }
  const Json& what = json.at("tensor");
  entry.metadata = deserialize_metadata(what.at("metadata").get<std::string>());
  entry.init_rrefs = what.at("init_rrefs").get<bool>();
  if (what.at("chunk_dim").is_null()) {
    entry.spec = infer_sharding_spec(entry.metadata.shards_metadata);
  } else {
    std::vector<RemoteDevice> placements;
    for (const Json& p : what.at("placements")) placements.emplace_back(p.get<std::string>());
    entry.spec = ChunkShardingSpec(what.at("chunk_dim").get<int64_t>(), std::move(placements));
  }
  for (const ShardMetadata& shard : entry.metadata.shards_metadata)
    TORCH_CHECK(shard.placement.has_value(), "damaged: '", entry.name, "' has ", shard);
  for (std::string_view piece : pieces) {
    Shard shard = shard_from_bytes(piece);
    TORCH_CHECK(shard.metadata.placement.has_value(), "damaged: '", entry.name, "' has ", shard.metadata);
    const c10::Device device = shard.metadata.placement->device();
    if (shard.tensor.device() != device) {
      const bool requires_grad = shard.tensor.requires_grad();
      shard.tensor = shard.tensor.detach().to(device).set_requires_grad(requires_grad);
    }
    entry.shards.push_back(std::move(shard));
  }
  put_in_order(entry.shards, entry.metadata, rank, group.world());
  return entry;
}

std::vector<Entry> load_rank(std::string_view bytes, const ProcessGroup& group, int64_t rank) {
  const size_t end = bytes.find('\n');
  TORCH_CHECK(end != bytes.npos, "damaged: no end of the header");
  const Json json = parse_strict_json(bytes.substr(0, end), "shards");
  TORCH_CHECK(json.is_object() && json.value("format", Json()) == Json(kShardsFormat), "no bytes of format ",
              kShardsFormat);
  TORCH_CHECK(json.value("version", Json()) == Json(kShardsVersion), "version ", json.value("version", Json()).dump(),
              ", but this library reads version ", kShardsVersion);
  std::string_view blobs = bytes.substr(end + 1);
  std::vector<Entry> entries;
  for (const Json& entry : json.at("entries")) entries.push_back(entry_of(entry, blobs, group, rank));
  TORCH_CHECK(blobs.empty(), "damaged: ", blobs.size(), " bytes too many");
  return entries;
}

}  // namespace

std::vector<std::string> save_shards(const NamedTensors& tensors, const World& world) {
  std::vector<std::string> bytes;
  for (int64_t rank : world.owned_ranks()) bytes.push_back(save_rank(tensors, rank));
  return bytes;
}

NamedTensors load_shards(const std::vector<std::string>& bytes, const World& world) {
  TORCH_CHECK(
      world.defined(),
      "Need to initialize default process group using \"init_process_group\" before loading ShardedTensor: give a "
      "World");
  const ProcessGroup group = loading_group.defined() ? loading_group : ProcessGroup(world);
  const auto& owned = world.owned_ranks();
  std::vector<std::vector<Entry>> loaded(owned.size());
  check_on_all_ranks(world, "load_shards", [&](int64_t rank) {
    TORCH_CHECK_VALUE(bytes.size() == owned.size(), "bytes of ", bytes.size(), " ranks, but this process owns ",
                      owned.size());
    const size_t i = std::find(owned.begin(), owned.end(), rank) - owned.begin();
    try {
      loaded[i] = load_rank(bytes[i], group, rank);
    } catch (const Json::exception& e) {
      TORCH_CHECK(false, "damaged: ", e.what());
    }
    const auto same_name = [](const Entry& a, const Entry& b) { return a.name == b.name && a.is_plain == b.is_plain; };
    TORCH_CHECK(std::equal(loaded[i].begin(), loaded[i].end(), loaded[0].begin(), loaded[0].end(), same_name),
                "other tensors than rank ", owned[0], " has");
  });
  NamedTensors tensors;
  for (size_t e = 0; !loaded.empty() && e < loaded[0].size(); ++e) {
    Entry& first = loaded[0][e];
    if (first.is_plain) {
      tensors.emplace(first.name, first.plain);
      continue;
    }
    RankShards shards;
    for (int64_t rank : group.owned_ranks())
      shards.push_back(std::move(loaded[std::find(owned.begin(), owned.end(), rank) - owned.begin()][e].shards));
    if (first.init_rrefs) check_shard_service(world);
    tensors.emplace(first.name,
                    make_sharded_tensor({first.spec, first.metadata, std::move(shards), group, first.init_rrefs}));
  }
  return tensors;
}

LoadWithProcessGroup::LoadWithProcessGroup(ProcessGroup group) {
  TORCH_CHECK(!loading_group.defined(),
              "ProcessGroup already set by previous \"load_with_process_group\" context manager");
  loading_group = std::move(group);
}

LoadWithProcessGroup::~LoadWithProcessGroup() { loading_group = {}; }

}  // namespace dtensor::sharded
