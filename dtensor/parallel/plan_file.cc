#include "dtensor/parallel/plan_file.h"

#include <c10/util/Exception.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

namespace dtensor::internal {
namespace {

using PlanJson = nlohmann::ordered_json;

std::string format_of(const char* what) { return std::string("dtensor ") + what; }

// Keys that an object has twice would be one, with the last value.
PlanJson parsed_plan(std::istream& file) {
  std::vector<std::set<std::string>> keys;  // of the objects around the position
  const auto no_key_twice = [&](int, PlanJson::parse_event_t event, PlanJson& parsed) {
    if (event == PlanJson::parse_event_t::object_start) keys.emplace_back();
    if (event == PlanJson::parse_event_t::object_end) keys.pop_back();
    if (event == PlanJson::parse_event_t::key) {
      const auto key = parsed.get<std::string>();
      TORCH_CHECK_VALUE(keys.back().insert(key).second, "an object has the key '", key, "' twice");
    }
    return true;
  };
  return PlanJson::parse(file, no_key_twice);
}

}  // namespace

std::string plan_file_text(const char* what, const PlanJson& members) {
  PlanJson json{{"format", format_of(what)}, {"version", 1}};
  json.update(members);
  return json.dump(2) + "\n";
}

void save_plan_file(const std::string& path, const char* what, const PlanJson& members, const char* function) {
  std::ofstream file(path);
  file << plan_file_text(what, members);
  file.flush();
  TORCH_CHECK(file.good(), "[", function, "] cannot write '", path, "'");
}

void load_plan_file(const std::string& path, const char* what, const char* function,
                    const std::function<void(const PlanJson& json)>& read) {
  std::ifstream file(path);
  TORCH_CHECK(file.good(), "[", function, "] cannot read '", path, "'");
  try {
    const PlanJson json = parsed_plan(file);
    TORCH_CHECK_VALUE(json.at("format") == format_of(what) && json.at("version") == 1,
                      "made by another version, or no ", what);
    read(json);
  } catch (const PlanJson::exception& e) {
    TORCH_CHECK(false, "[", function, "] '", path, "' is no ", what, ": ", e.what());
  } catch (const c10::Error& e) {
    TORCH_CHECK(false, "[", function, "] '", path, "' is no ", what, ": ", e.what_without_backtrace());
  }
}

}  // namespace dtensor::internal
