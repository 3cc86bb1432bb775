// Untrusted JSON from files, as a tree.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dtensor::internal {

// Refuses what nlohmann::json takes in silence: keys that stand twice in one object, a byte of zeros as the end; and
// texts beyond 100 MB, nesting beyond 16 levels, more than 4 million values, so that memory and time are bounded.
// Error (c10::Error): one of these, or no JSON; the text has `path` and the place.
nlohmann::json parse_strict_json(std::string_view text, const std::string& path);

}  // namespace dtensor::internal
