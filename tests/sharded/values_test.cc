// Remote devices, metadata, properties.
#include <absl/container/flat_hash_set.h>
#include <c10/core/DefaultDtype.h>

#include <nlohmann/json.hpp>
#include <random>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>

#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::sharded {
namespace {

const std::optional<std::string> kNoWorker;
const std::optional<int64_t> kNoRank;

TEST_CASE("RD-1 texts of remote devices") {
  struct Row {
    const char* text;
    std::optional<std::string> worker;
    std::optional<int64_t> rank;
    const char* device;
  };
  const Row rows[] = {{"rank:0/cuda:0", kNoWorker, 0, "cuda:0"},
                      {"rank:0/cpu", kNoWorker, 0, "cpu"},
                      {"rank:0", kNoWorker, 0, "cpu"},
                      {"rank:123", kNoWorker, 123, "cpu"},
                      {"trainer0/cpu", "trainer0", kNoRank, "cpu"},
                      {"trainer0", "trainer0", kNoRank, "cpu"},
                      {"ps0/cuda:0", "ps0", kNoRank, "cuda:0"},
                      {"cpu", kNoWorker, kNoRank, "cpu"},
                      {"cuda:1", kNoWorker, kNoRank, "cuda:1"},
                      {"cuda", kNoWorker, kNoRank, "cuda"},
                      {"rank/meta", "rank", kNoRank, "meta"}};
  for (const Row& row : rows) {
    INFO(row.text);
    const RemoteDevice device(row.text);
    CHECK(device.worker_name() == row.worker);
    CHECK(device.rank() == row.rank);
    CHECK(device.device() == c10::Device(row.device));
  }
}

TEST_CASE("RD-2 texts that are not remote devices") {
  for (const char* text : {"cuda:foo", "foo:0", "random:0", "rank:foo", "rank:-1", "rank:", "rank:1:2", "a/b/c", "/cpu",
                           "a:b:c/cpu", "worker:0/cpu", "rank:99999999999999999999", "rank:1x/cpu", "", "rank:0 "}) {
    INFO(text);
    CHECK_ERROR(c10::ValueError,
                std::string("Could not parse remote_device: ") + text +
                    ". The valid format is '<workername>/<device>' or 'rank:<rank>/<device>' or '<device>'",
                RemoteDevice{text});
  }
  for (const char* text : {"rank:0/cuda:foo", "rank:0/cpu2"})
    CHECK_ERROR(c10::Error, "Invalid device string", RemoteDevice{text});
  for (const char* text : {"rank:0/foo", "rank:0/random:0"})
    CHECK_ERROR(c10::Error, "Expected one of", RemoteDevice{text});
  CHECK_ERROR(c10::Error, "", RemoteDevice{"rank:0/"});
}

TEST_CASE("RD-3 remote devices as text, compared and hashed") {
  const std::vector<RemoteDevice> all = {"rank:0/cuda:0", "rank:0/cuda:1", "rank:0/cuda", "rank:1/cuda:0", "rank:0/cpu",
                                         "worker/cpu",    "worker2/cpu",   "cpu",         "cuda:0",        "cuda"};
  std::unordered_set<RemoteDevice> set;
  for (size_t i = 0; i < all.size(); ++i) {
    CHECK(RemoteDevice(all[i].str()) == all[i]);
    for (size_t k = 0; k < all.size(); ++k) CHECK((all[i] == all[k]) == (i == k));
    set.insert(all[i]);
    set.insert(RemoteDevice(all[i].str()));
  }
  CHECK(set.size() == all.size());
  CHECK(RemoteDevice("rank:7").str() == "rank:7/cpu");
  CHECK(RemoteDevice("worker").str() == "worker/cpu");
  CHECK(RemoteDevice("rank:1/cuda:1").on(c10::Device("cpu")) == RemoteDevice("rank:1/cpu"));
}

TEST_CASE("RD-4 remote devices from devices, and from nothing else") {
  const RemoteDevice device{c10::Device("cuda:1")};
  CHECK((!device.rank() && !device.worker_name() && device.device() == c10::Device("cuda:1")));
  STATIC_REQUIRE(std::is_constructible_v<RemoteDevice, c10::Device>);
  STATIC_REQUIRE(!std::is_constructible_v<RemoteDevice, int>);
  STATIC_REQUIRE(!std::is_constructible_v<RemoteDevice, double>);
  STATIC_REQUIRE(!std::is_constructible_v<RemoteDevice, std::vector<int>>);
}

TEST_CASE("SM-1 invalid shard metadata") {
  CHECK_ERROR(c10::ValueError, "Could not parse remote_device", ShardMetadata({0}, {1, 2}, "rank:foo"));
  CHECK_ERROR(c10::ValueError,
              "shard_offsets and shard_sizes should have the same number of elements, found 1 and [-1, 2] respectively",
              ShardMetadata({-1}, {-1, 2}));
  CHECK_ERROR(c10::ValueError, "shard_offsets should be >=0", ShardMetadata({-1}, {-1}));
  CHECK_ERROR(c10::ValueError, "shard_sizes should be >= 0", ShardMetadata({0}, {-1}));
}

TEST_CASE("SM-2 shard metadata with and without a placement") {
  const ShardMetadata none({10}, {0});
  CHECK(!none.placement);
  CHECK_ERROR(c10::ValueError, "remote device is None", validate_remote_device(test_world(), 0, none.placement));
  const ShardMetadata some({10}, {0}, "rank:0/cpu");
  CHECK(some.placement == RemoteDevice("rank:0/cpu"));
  const RankAndDevice valid = validate_remote_device(test_world(), 0, some.placement);
  CHECK((valid.rank == 0 && valid.device == c10::Device("cpu")));
}

TEST_CASE("SM-3 shard metadata as a key") {
  std::mt19937 random(1);
  const auto number = [&](int most) { return static_cast<int64_t>(random() % most); };
  std::vector<ShardMetadata> all;
  std::unordered_map<ShardMetadata, size_t> index;
  for (int i = 0; i < 1000; ++i) {
    const auto ndim = number(3);
    std::vector<int64_t> offsets, sizes;
    for (int64_t d = 0; d < ndim; ++d) {
      offsets.push_back(number(3));
      sizes.push_back(number(3));
    }
    std::optional<RemoteDevice> where;
    if (number(4) > 0) where = RemoteDevice(number(3), c10::Device("cpu"));
    all.emplace_back(offsets, sizes, where);
    index.emplace(all.back(), all.size() - 1);
  }
  size_t different = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    bool first = true;
    for (size_t k = 0; k < i && first; ++k) first = !(all[k] == all[i]);
    different += first;
    CHECK(all[index.at(all[i])] == all[i]);
    CHECK(std::hash<ShardMetadata>()(all[i]) == std::hash<ShardMetadata>()(ShardMetadata(all[i])));
  }
  CHECK(index.size() == different);
  CHECK(different > 100);
}

TEST_CASE("TP-1 default properties") {
  const TensorProperties properties;
  CHECK(properties.dtype == at::kFloat);
  CHECK(properties.layout == c10::kStrided);
  CHECK(!properties.requires_grad);
  CHECK(properties.memory_format == c10::MemoryFormat::Contiguous);
  CHECK(!properties.pin_memory);
  c10::set_default_dtype(caffe2::TypeMeta::fromScalarType(at::kDouble));
  CHECK(TensorProperties().dtype == at::kDouble);
  c10::set_default_dtype(caffe2::TypeMeta::fromScalarType(at::kFloat));
  const auto t = at::zeros({2}, at::kDouble).set_requires_grad(true);
  TensorProperties of_t(at::kDouble);
  of_t.requires_grad = true;
  CHECK(TensorProperties::create_from_tensor(t) == of_t);
}

ShardedTensorMetadata grid_metadata() {
  ShardedTensorMetadata metadata;
  for (int64_t r = 0; r < 4; ++r)
    metadata.shards_metadata.emplace_back(std::vector<int64_t>{r / 2 * 5, r % 2 * 5}, std::vector<int64_t>{5, 5},
                                          "rank:" + std::to_string(r) + "/cuda:" + std::to_string(r));
  metadata.size = {10, 10};
  return metadata;
}

TEST_CASE("TP-2 metadata as text and back, 288 cases") {
  int cases = 0;
  for (auto dtype : {at::kFloat, at::kDouble, at::kComplexFloat, at::kComplexDouble, at::kHalf, at::kBFloat16,
                     at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool}) {
    for (auto layout : {c10::kStrided, c10::kSparse}) {
      for (bool requires_grad : {true, false}) {
        for (auto format :
             {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast, c10::MemoryFormat::Preserve}) {
          for (bool pin : {true, false}) {
            ShardedTensorMetadata metadata = grid_metadata();
            TensorProperties& p = metadata.tensor_properties;
            p.dtype = dtype;
            p.layout = layout;
            p.requires_grad = requires_grad;
            p.memory_format = format;
            p.pin_memory = pin;
            CHECK(deserialize_metadata(serialize(metadata)) == metadata);
            ++cases;
          }
        }
      }
    }
  }
  CHECK(cases == 288);
  ShardedTensorMetadata odd;
  odd.shards_metadata = {ShardMetadata({0}, {0}), ShardMetadata({}, {}, "some \"worker\"/cpu")};
  CHECK(deserialize_metadata(serialize(odd)) == odd);
}

TEST_CASE("TP-3 damaged metadata") {
  ShardedTensorMetadata metadata = grid_metadata();
  metadata.tensor_properties.memory_format = c10::MemoryFormat::ChannelsLast3d;
  CHECK_ERROR(c10::Error, "Invalid torch.memory_format: ", serialize(metadata));
  const auto good = nlohmann::json::parse(serialize(grid_metadata()));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto bad = good;
    bad[key] = value;
    return bad.dump();
  };
  CHECK_ERROR(c10::Error, "Invalid torch.memory_format encoding: 3", deserialize_metadata(with("memory_format", 3)));
  CHECK_ERROR(c10::Error, "Invalid torch.dtype encoding: Floot", deserialize_metadata(with("dtype", "Floot")));
  CHECK_ERROR(c10::Error, "Invalid torch.layout encoding", deserialize_metadata(with("layout", "sparse")));
  CHECK_ERROR(c10::Error, "version 2, but this library reads version 1", deserialize_metadata(with("version", 2)));
  CHECK_ERROR(c10::Error, "no text of format", deserialize_metadata(with("format", "other")));
  CHECK_ERROR(c10::Error, "damaged", deserialize_metadata(with("size", "ten")));
  CHECK_ERROR(c10::Error, "no integer", deserialize_metadata(with("size", {1.5})));
  CHECK_ERROR(c10::ValueError, "size should be >= 0", deserialize_metadata(with("size", {-1})));
  CHECK_ERROR(c10::ValueError, "Could not parse remote_device",
              deserialize_metadata(with("shards", {{{"offsets", {0}}, {"sizes", {1}}, {"placement", "a/b/c"}}})));
  // Every way to cut it off or to change a byte is an error or other metadata, never a crash.
  const std::string text = serialize(grid_metadata());
  int errors = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    for (const std::string& bad : {text.substr(0, i), changed}) {
      bool same = false;
      try {
        same = deserialize_metadata(bad) == grid_metadata();
      } catch (const c10::Error&) {
        ++errors;
      }
      if (same) FAIL(bad);
    }
  }
  CHECK(errors > static_cast<int>(text.size()));
}

TEST_CASE("TP-4 tensors of properties") {
  TensorProperties properties(at::kDouble);
  const auto check = [&](c10::Device device) {
    const at::Tensor t = create_tensor_from_params({5, 10}, device, properties);
    CHECK(t.sizes() == c10::IntArrayRef({5, 10}));
    CHECK(t.device() == device);
    CHECK(t.scalar_type() == at::kDouble);
    CHECK(t.layout() == c10::kStrided);
    CHECK(t.requires_grad() == properties.requires_grad);
    CHECK(t.is_contiguous());
  };
  check(c10::Device("cpu"));
  properties.requires_grad = true;
  check(c10::Device("cpu"));
  if (at::hasCUDA()) check(c10::Device("cuda:0"));
}

}  // namespace
}  // namespace dtensor::sharded
