#include "checkpoint/formats/strict_json.h"

#include <c10/util/Exception.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"

namespace dtensor::internal {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxBytes = 100'000'000, kMaxNesting = 16, kMaxValues = 4'000'000;

}  // namespace

Json parse_strict_json(std::string_view text, const std::string& path) try {
  TORCH_CHECK(text.size() <= kMaxBytes, "[load] '", path, "' has ", text.size(), " bytes of JSON, more than ",
              kMaxBytes);
  TORCH_CHECK(text.find('\0') == text.npos, "[load] '", path, "' is no JSON: it has a byte of zeros");
  std::vector<absl::flat_hash_set<std::string>> keys;  // of the objects and arrays that are open
  size_t values = 0;
  return Json::parse(text.begin(), text.end(), [&](int, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys.emplace_back();
        TORCH_CHECK(keys.size() <= kMaxNesting, "[load] '", path, "' has more than ", kMaxNesting,
                    " levels of nesting");
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys.pop_back();
        break;
      case Json::parse_event_t::key: {
        const std::string key = parsed.get<std::string>();
        TORCH_CHECK(keys.back().insert(key).second, "[load] '", path, "' has the key '",
                    absl::Utf8SafeCEscape(key.substr(0, 200)), "' twice");
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    TORCH_CHECK(++values <= kMaxValues, "[load] '", path, "' has more than ", kMaxValues, " values");
    return true;
  });
} catch (const Json::parse_error& e) {
  TORCH_CHECK(false, "[load] '", path, "' is no JSON at byte ", e.byte);
} catch (const Json::out_of_range&) {
  TORCH_CHECK(false, "[load] '", path, "' has a number beyond what a double holds");
}

}  // namespace dtensor::internal
