#include "sharded/sharded_tensor_metadata.h"

#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/formats/strict_json.h"
#include "dtensor/dispatch_key.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

using Json = nlohmann::json;

constexpr char kMetadataFormat[] = "dtensor.sharded_tensor_metadata";
constexpr int64_t kMetadataVersion = 1;

constexpr std::array kLayouts = {std::pair("strided", c10::kStrided),      std::pair("sparse_coo", c10::kSparse),
                                 std::pair("sparse_csr", c10::kSparseCsr), std::pair("sparse_csc", c10::kSparseCsc),
                                 std::pair("sparse_bsr", c10::kSparseBsr), std::pair("sparse_bsc", c10::kSparseBsc)};
constexpr std::array kMemoryFormats = {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast,
                                       c10::MemoryFormat::Preserve};

std::string text_of(c10::Layout layout) {
  for (const auto& [name, value] : kLayouts) {
    if (value == layout) return name;
  }
  TORCH_CHECK(false, "Invalid torch.layout: ", layout);
}

c10::Layout layout_of(const std::string& text) {
  for (const auto& [name, value] : kLayouts) {
    if (name == text) return value;
  }
  TORCH_CHECK(false, "Invalid torch.layout encoding: ", text);
}

int64_t encoding_of(c10::MemoryFormat format) {
  for (size_t i = 0; i < kMemoryFormats.size(); ++i) {
    if (kMemoryFormats[i] == format) return static_cast<int64_t>(i);
  }
  TORCH_CHECK(false, "Invalid torch.memory_format: ", format);
}

c10::MemoryFormat memory_format_of(int64_t encoding) {
  TORCH_CHECK(encoding >= 0 && encoding < static_cast<int64_t>(kMemoryFormats.size()),
              "Invalid torch.memory_format encoding: ", encoding);
  return kMemoryFormats[encoding];
}

c10::ScalarType dtype_of(const std::string& text) {
  for (int i = 0; i < static_cast<int>(c10::ScalarType::Undefined); ++i) {
    if (text == c10::toString(static_cast<c10::ScalarType>(i))) return static_cast<c10::ScalarType>(i);
  }
  TORCH_CHECK(false, "Invalid torch.dtype encoding: ", text);
}

Json json_of(const ShardMetadata& shard) {
  Json json = {{"offsets", shard.shard_offsets}, {"sizes", shard.shard_sizes}, {"placement", nullptr}};
  if (shard.placement) json["placement"] = shard.placement->str();
  return json;
}

ShardMetadata shard_of(const Json& json) {
  std::optional<RemoteDevice> placement;
  if (!json.at("placement").is_null()) placement = RemoteDevice(json.at("placement").get<std::string>());
  return ShardMetadata(json.at("offsets").get<std::vector<int64_t>>(), json.at("sizes").get<std::vector<int64_t>>(),
                       std::move(placement));
}

// JSON numbers may be fractions, which get<int64_t>() would silently truncate.
void check_integers(const Json& json) {
  if (json.is_number()) TORCH_CHECK(json.is_number_integer(), "a number that is no integer: ", json.dump());
  if (!json.is_structured()) return;
  for (const Json& inner : json) check_integers(inner);
}

ShardedTensorMetadata metadata_of(const Json& json) {
  TORCH_CHECK(json.is_object() && json.value("format", Json()) == Json(kMetadataFormat), "no text of format ",
              kMetadataFormat);
  TORCH_CHECK(json.value("version", Json()) == Json(kMetadataVersion), "version ", json.value("version", Json()).dump(),
              ", but this library reads version ", kMetadataVersion);
  check_integers(json);
  ShardedTensorMetadata metadata;
  for (const Json& shard : json.at("shards")) metadata.shards_metadata.push_back(shard_of(shard));
  metadata.size = json.at("size").get<std::vector<int64_t>>();
  for (int64_t size : metadata.size) TORCH_CHECK_VALUE(size >= 0, "size should be >= 0, found ", size);
  TensorProperties& properties = metadata.tensor_properties;
  properties.dtype = dtype_of(json.at("dtype").get<std::string>());
  properties.layout = layout_of(json.at("layout").get<std::string>());
  properties.requires_grad = json.at("requires_grad").get<bool>();
  properties.memory_format = memory_format_of(json.at("memory_format").get<int64_t>());
  properties.pin_memory = json.at("pin_memory").get<bool>();
  return metadata;
}

}  // namespace

TensorProperties::TensorProperties() : dtype(c10::get_default_dtype_as_scalartype()) {}

TensorProperties TensorProperties::create_from_tensor(const at::Tensor& t) {
  TensorProperties properties(t.scalar_type());
  properties.layout = t.layout();
  properties.requires_grad = t.requires_grad();
  properties.pin_memory = t.device().is_cpu() && t.layout() == c10::kStrided && t.is_pinned();
  return properties;
}

std::string ShardedTensorMetadata::to_string() const {
  std::string shards;
  for (const ShardMetadata& shard : shards_metadata) shards += (shards.empty() ? "" : ", ") + shard.to_string();
  return c10::str("ShardedTensorMetadata(shards_metadata=[", shards, "], size=", c10::IntArrayRef(size),
                  ", dtype=", tensor_properties.dtype, ", layout=", tensor_properties.layout,
                  ", requires_grad=", tensor_properties.requires_grad ? "True" : "False",
                  ", memory_format=", tensor_properties.memory_format,
                  ", pin_memory=", tensor_properties.pin_memory ? "True" : "False", ")");
}

std::string serialize(const ShardedTensorMetadata& metadata) {
  const TensorProperties& properties = metadata.tensor_properties;
  Json shards = Json::array();
  for (const ShardMetadata& shard : metadata.shards_metadata) shards.push_back(json_of(shard));
  const Json json = {{"format", kMetadataFormat},
                     {"version", kMetadataVersion},
                     {"shards", std::move(shards)},
                     {"size", metadata.size},
                     {"dtype", c10::toString(properties.dtype)},
                     {"layout", text_of(properties.layout)},
                     {"requires_grad", properties.requires_grad},
                     {"memory_format", encoding_of(properties.memory_format)},
                     {"pin_memory", properties.pin_memory}};
  return json.dump();
}

ShardedTensorMetadata deserialize_metadata(std::string_view text) {
  try {
    return metadata_of(parse_strict_json(text, "sharded tensor metadata"));
  } catch (const Json::exception& e) {
    TORCH_CHECK(false, "sharded tensor metadata: damaged: ", e.what());
  } catch (c10::Error& e) {
    e.add_context("while reading sharded tensor metadata");
    throw;
  }
}

at::Tensor create_tensor_from_params(c10::IntArrayRef sizes, c10::Device device, const TensorProperties& properties) {
  const auto format = properties.memory_format == c10::MemoryFormat::Preserve
                          ? std::optional<c10::MemoryFormat>()
                          : std::optional<c10::MemoryFormat>(properties.memory_format);
  const c10::impl::ExcludeDispatchKeyGuard plain(kDTensorKey);  // also inside a MeshScope
  at::Tensor t = at::empty(sizes,
                           at::TensorOptions()
                               .dtype(properties.dtype)
                               .layout(properties.layout)
                               .device(device)
                               .pinned_memory(properties.pin_memory),
                           properties.layout == c10::kStrided ? format : std::nullopt);
  t.set_requires_grad(properties.requires_grad);
  return t;
}

}  // namespace dtensor::sharded
