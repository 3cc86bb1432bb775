#include "checkpoint/formats/hugging_face_index.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "checkpoint/formats/mapped_file.h"
#include "checkpoint/formats/strict_json.h"

namespace dtensor::internal {

std::string weights_file(size_t i, size_t n) {
  return n == 1 ? kSingleFile : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, n);
}

std::string shown_name(const std::string& name) { return "'" + absl::Utf8SafeCEscape(name.substr(0, 200)) + "'"; }

bool is_weights_file(const std::string& name) {
  if (name == kSingleFile || name == kIndexFile) return true;
  const auto digits = [](absl::string_view& text) {
    const size_t n = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(n);
    return n >= 5;
  };
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, "model-") && digits(rest) && absl::ConsumePrefix(&rest, "-of-") && digits(rest) &&
         rest == ".safetensors";
}

HuggingFaceIndex read_hugging_face_index(const std::string& path) {
  const MappedFile file(path);
  return parse_hugging_face_index({file.data(), file.size()}, path);
}

HuggingFaceIndex parse_hugging_face_index(std::string_view text, const std::string& path) {
  const nlohmann::json json = parse_strict_json(text, path);
  const auto check = [&](bool ok, const std::string& what) {
    TORCH_CHECK(ok, "[load] '", path, "' is no index of safetensors files: ", what);
  };
  HuggingFaceIndex index;
  check(json.is_object() && json.contains("weight_map") && json["weight_map"].is_object(), "it has no weight_map");
  for (const auto& [name, value] : json["weight_map"].items()) {
    check(value.is_string(), "weight_map has no file for " + shown_name(name));
    const std::string& target = value.get_ref<const std::string&>();
    // A file of another folder could be anything that this process may read.
    check(!target.empty() && target != "." && target != ".." &&
              target.find_first_of(std::string_view("/\0", 2)) == target.npos,
          "weight_map has for " + shown_name(name) + " " + shown_name(target) +
              ", which is no name of a file beside the index");
    index.weight_map.emplace(name, target);
  }
  const auto metadata = json.find("metadata");
  if (metadata == json.end()) return index;
  check(metadata->is_object(), "its metadata is no object");
  const auto size = metadata->find("total_size");
  if (size == metadata->end()) return index;
  check(size->is_number_unsigned() && size->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX),
        "metadata.total_size is no number of bytes");
  index.total_size = size->get<int64_t>();
  return index;
}

}  // namespace dtensor::internal
