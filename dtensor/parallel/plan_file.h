// A plan in a JSON file: {"format": "dtensor layout plan", "version": 1, ...}.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dtensor::internal {

// The contents of the file.
std::string plan_file_text(const char* what, const nlohmann::ordered_json& members);
// `what` is "layout plan" or the like, and `function` the caller's name, for errors. Error (c10::Error): the file
// cannot be written.
void save_plan_file(const std::string& path, const char* what, const nlohmann::ordered_json& members,
                    const char* function);

// Calls `read` with the object in the file. Errors (c10::Error): the file cannot be read, or is no such plan: not JSON,
// with another format or version, with a key twice in one object, or an error of `read`. The text names the file.
void load_plan_file(const std::string& path, const char* what, const char* function,
                    const std::function<void(const nlohmann::ordered_json& json)>& read);

}  // namespace dtensor::internal
