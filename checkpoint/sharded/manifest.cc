#include "checkpoint/sharded/manifest.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "checkpoint/formats/checksums.h"
#include "checkpoint/formats/mapped_file.h"
#include "checkpoint/formats/safetensors_dtypes.h"
#include "checkpoint/formats/safetensors_header.h"
#include "checkpoint/sharded/boxes.h"
#include "comm/error_message.h"

namespace dtensor::internal {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "dtensor checkpoint";
constexpr int64_t kVersion = 1;
constexpr int kMostNested = 12;                 // far below any recursion limit
constexpr size_t kMostBytes = size_t{1} << 30;  // of a manifest

// JSON has no word for a number that is not finite.
Json value_json(const CheckpointValue& value) {
  if (const auto* number = std::get_if<double>(&value); number != nullptr && !std::isfinite(*number))
    return {{"double", std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf"}};
  return std::visit([](const auto& v) { return Json(v); }, value);
}

// nlohmann::json silently converts numbers that are not int64_t: 1.5, 1e300, 2^64 - 1.
int64_t integer_of(const Json& json) {
  const bool fits =
      json.is_number_unsigned() ? json.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX) : json.is_number_integer();
  TORCH_CHECK(fits, "is damaged: ", json.dump().substr(0, 200), " stands where a whole number of 64 bits must");
  return json.get<int64_t>();
}

CheckpointValue value_of(const std::string& name, const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_number_integer()) return integer_of(json);
  if (json.is_string()) return json.get<std::string>();
  const std::string text = json.is_object() ? json.value("double", "") : "";
  TORCH_CHECK(text == "nan" || text == "inf" || text == "-inf", "the value '", name, "' is no number, text or bool");
  return text == "nan" ? NAN : text == "inf" ? INFINITY : -INFINITY;
}

std::vector<int64_t> numbers(const Shape& shape) { return {shape.begin(), shape.end()}; }

// Not negative, and as many as `ndim` if that is not -1.
Shape shape_of(const Json& json, int64_t ndim = -1) {
  TORCH_CHECK(json.is_array(), "a shape is ", json.type_name(), ", not a list");
  std::vector<int64_t> all;
  for (const Json& n : json) all.push_back(integer_of(n));
  TORCH_CHECK(ndim < 0 || static_cast<int64_t>(all.size()) == ndim, "a box has ", all.size(), " dims, its tensor ",
              ndim);
  TORCH_CHECK(std::all_of(all.begin(), all.end(), [](int64_t n) { return n >= 0; }),
              "a size or offset is negative: ", at::IntArrayRef(all));
  return Shape(all.begin(), all.end());
}

Json tensor_json(const ManifestTensor& tensor) {
  Json boxes = Json::array();
  for (const ManifestBox& b : tensor.boxes)
    boxes.push_back({{"file", b.file}, {"offsets", numbers(b.box.offsets)}, {"sizes", numbers(b.box.sizes)}});
  Json json = {{"dtype", safetensors_dtype_name(tensor.dtype)}, {"shape", numbers(tensor.shape)}, {"boxes", boxes}};
  if (!tensor.layout.empty()) json["layout"] = tensor.layout;
  return json;
}

ManifestTensor tensor_of(const Json& json, const std::map<std::string, ManifestFile>& files) {
  ManifestTensor tensor;
  const auto word = json.at("dtype").get<std::string>();
  const auto dtype = safetensors_dtype_of(word);
  TORCH_CHECK(dtype, "there is no dtype '", word, "'; known are ", safetensors_dtype_names());
  tensor.dtype = *dtype;
  tensor.shape = shape_of(json.at("shape"));
  TORCH_CHECK(data_bytes(tensor.dtype, numbers(tensor.shape)), "the sizes ", at::IntArrayRef(tensor.shape),
              " are too large");
  tensor.layout = json.value("layout", "");
  std::vector<Box> boxes;
  for (const Json& b : json.at("boxes")) {
    ManifestBox box;
    box.file = b.at("file").get<std::string>();
    TORCH_CHECK(files.count(box.file) > 0, "a box is in '", box.file, "', which is not among the files");
    const auto ndim = static_cast<int64_t>(tensor.shape.size());
    box.box = {shape_of(b.at("offsets"), ndim), shape_of(b.at("sizes"), ndim)};
    boxes.push_back(box.box);
    tensor.boxes.push_back(std::move(box));
  }
  if (const std::string wrong = why_no_tiling(tensor.shape, boxes); !wrong.empty()) TORCH_CHECK(false, wrong);
  return tensor;
}

// Files must be in the folder itself, since the manifest is untrusted.
void check_name(const std::string& file) {
  TORCH_CHECK(absl::EndsWith(file, ".safetensors") && file.find('/') == std::string::npos && file[0] != '.' &&
                  file.find('\0') == std::string::npos,
              "'", file, "' is no name of a file in the folder");
}

Manifest manifest_of(const Json& json) {
  Manifest manifest;
  manifest.id = json.at("id").get<std::string>();
  for (const auto& [name, file] : json.at("files").items()) {
    check_name(name);
    const int64_t bytes = integer_of(file.at("bytes"));
    TORCH_CHECK(bytes >= 0, "is damaged: file '", name, "' has ", bytes, " bytes");
    manifest.files[name] = {bytes, parse_sums(file.at("header_sum").get<std::string>(), 1)[0]};
  }
  for (const auto& [name, tensor] : json.at("tensors").items()) {
    try {
      manifest.tensors[name] = tensor_of(tensor, manifest.files);
    } catch (const std::exception& e) {
      TORCH_CHECK(false, "tensor '", name, "': ", message_of(e));
    }
  }
  for (const auto& [name, value] : json.at("settings").items()) manifest.settings[name] = value_of(name, value);
  for (const auto& [name, value] : json.at("values").items()) manifest.values[name] = value_of(name, value);
  return manifest;
}

}  // namespace

std::string to_text(const Manifest& manifest) try {
  Json tensors = Json::object(), files = Json::object(), settings = Json::object(), values = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) tensors[name] = tensor_json(tensor);
  for (const auto& [name, file] : manifest.files)
    files[name] = {{"bytes", file.bytes}, {"header_sum", checksum_text(file.header_sum)}};
  for (const auto& [name, value] : manifest.settings) settings[name] = value_json(value);
  for (const auto& [name, value] : manifest.values) values[name] = value_json(value);
  const Json inner = {
      {"id", manifest.id}, {"files", files}, {"tensors", tensors}, {"settings", settings}, {"values", values}};
  const std::string text = inner.dump();
  const Json whole = {{"format", kFormat},
                      {"version", kVersion},
                      {"checksum", checksum_text(checksum(text.data(), text.size()))},
                      {"checkpoint", inner}};
  return whole.dump(1) + "\n";
} catch (const nlohmann::json::exception& e) {  // of texts alone
  TORCH_CHECK_VALUE(false, "a name or value is not in UTF-8: ", e.what());
}

Manifest parse_manifest(const std::string& text) try {
  TORCH_CHECK(!text.empty() && text.back() == '\n', "is damaged: it was cut off");
  const Json whole = Json::parse(text, [](int depth, Json::parse_event_t, Json&) {
    TORCH_CHECK(depth <= kMostNested, "is damaged: it is nested deeper than any checkpoint");
    return true;
  });
  TORCH_CHECK(whole.is_object() && whole.value("format", "") == kFormat, "is no checkpoint of this library");
  const auto version = integer_of(whole.at("version"));
  TORCH_CHECK(version == kVersion, "is of version ", version, "; this library reads version ", kVersion);
  const std::string inner = whole.at("checkpoint").dump();
  const std::string sum = checksum_text(checksum(inner.data(), inner.size()));
  TORCH_CHECK(whole.at("checksum").get<std::string>() == sum, "is damaged: its checksum is ", sum, ", not ",
              whole.at("checksum").get<std::string>(), " as it says");
  return manifest_of(whole.at("checkpoint"));
} catch (const nlohmann::json::exception& e) {
  TORCH_CHECK(false, "is damaged: ", e.what());
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = absl::StrCat(folder, "/", kManifestName);
  TORCH_CHECK(access(path.c_str(), F_OK) == 0, "[load_checkpoint] there is no checkpoint in '", folder,
              "': ", kManifestName, " is not there, or cannot be reached: ", std::strerror(errno));
  try {
    const MappedFile file(path);
    TORCH_CHECK(file.size() <= kMostBytes, "has ", file.size(), " bytes; a manifest has at most ", kMostBytes);
    return parse_manifest({file.data(), file.size()});
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, "[load_checkpoint] '", path, "' ", e.what_without_backtrace());
  }
}

}  // namespace dtensor::internal
