#include "tools/flight/input.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "comm/module_text.h"

namespace dtensor::tools {
namespace {

using Json = nlohmann::json;

constexpr int kMostNested = 32;              // of what is printed as it stands, by a recursion
constexpr int64_t kLargestRank = INT32_MAX;  // so that its neighbours are numbers, too

// One value of a file, and how errors call it.
class Field {
 public:
  Field(const std::string& file, std::string path, const Json& json)
      : file_(file), path_(std::move(path)), json_(&json) {}

  const Json& json() const { return *json_; }
  [[noreturn]] void refuse(const std::string& why) const {
    throw UsageError(absl::StrCat(file_, ": ", path_, " ", why));
  }

  bool has(const char* key) const { return json_->is_object() && json_->contains(key); }
  Field operator[](const char* key) const {
    if (!json_->is_object()) refuse("is not an object");
    if (!json_->contains(key))
      throw UsageError(absl::StrCat(file_, ": ", path_, " lacks '", key, "'; is this a flight recorder's dump?"));
    return Field(file_, absl::StrCat(path_, ".", key), json_->at(key));
  }
  Field at(size_t i) const { return Field(file_, absl::StrCat(path_, "[", i, "]"), json_->at(i)); }
  size_t size() const {
    if (!json_->is_array()) refuse("is not a list");
    return json_->size();
  }

  std::string text() const {
    if (!json_->is_string()) refuse("is not a text");
    return json_->get<std::string>();
  }
  // PyTorch writes some numbers as texts.
  int64_t number() const {
    int64_t value = 0;
    if (json_->is_string() && absl::SimpleAtoi(json_->get<std::string>(), &value)) return value;
    const bool fits = json_->is_number_unsigned() ? json_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                                                  : json_->is_number_integer();
    if (!fits) refuse("is not a whole number of 64 bits");
    return json_->get<int64_t>();
  }

 private:
  const std::string& file_;
  std::string path_;
  const Json* json_;
};

std::vector<int64_t> parse_rank_list(const Field& field) {
  std::vector<int64_t> ranks;
  std::string text = field.text();
  if (!absl::StartsWith(text, "[") || !absl::EndsWith(text, "]")) field.refuse("is not a list of ranks");
  text = text.substr(1, text.size() - 2);
  for (absl::string_view part : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    int64_t rank = 0;
    if (!absl::SimpleAtoi(part, &rank) || rank < 0 || rank > kLargestRank) field.refuse("is not a list of ranks");
    ranks.push_back(rank);
  }
  return ranks;
}

// Ours say what for; PyTorch's have only the name and the shapes.
std::string what_of(const Field& entry) {
  if (!entry.has("collective")) {
    return absl::StrCat(entry["profiling_name"].text(), " ", entry["input_sizes"].json().dump(), " ",
                        entry["input_dtypes"].json().dump());
  }
  std::string text = absl::StrCat(entry["collective"].text(), " over ", entry["mesh_dims"].text());
  const Field cause = entry["cause"];
  if (const std::string op = cause["op"].text(); !op.empty()) absl::StrAppend(&text, " for ", op);
  if (const std::string argument = cause["argument"].text(); !argument.empty())
    absl::StrAppend(&text, ", argument ", argument);
  const std::string tensor = entry["tensor"].text();
  return absl::StrCat(text, ": ", tensor.empty() ? entry["dtype"].text() : tensor, ", ", entry["bytes"].number(), " B");
}

int64_t rank_of(const std::string& file, const Field& root) {
  if (root.has("rank")) {
    const int64_t rank = root["rank"].number();
    if (rank < 0 || rank > kLargestRank) root["rank"].refuse("is not the number of a rank");
    return rank;
  }
  size_t digits = file.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(file[digits - 1]))) --digits;
  int64_t rank = 0;
  if (!absl::SimpleAtoi(file.substr(digits), &rank) || rank > kLargestRank) {
    throw UsageError(absl::StrCat(file, ": does not say its rank; let the file's name end with it"));
  }
  return rank;
}

// Also of groups whose calls the ring has forgotten.
int64_t last_call(const Field& root, const Field& group_id) {
  if (!root.has("pg_status")) return 0;
  const Field status = root["pg_status"];
  const std::string id = absl::StrCat(group_id.number());
  return status.has(id.c_str()) ? status[id.c_str()]["last_enqueued_collective"].number() : 0;
}

}  // namespace

FlightDump parse_flight_dump(const std::string& file, const std::string& text) {
  Json json;
  try {
    json = Json::parse(text, [&](int depth, Json::parse_event_t, Json&) {
      if (depth > kMostNested) throw UsageError(absl::StrCat(file, ": is nested deeper than any dump"));
      return true;
    });
  } catch (const Json::exception& e) {
    throw UsageError(absl::StrCat(file, ": is not JSON: ", e.what()));
  }
  FlightDump dump;
  dump.file = file;
  const Field root(dump.file, "the file", json);
  if (const std::string version = root["version"].text(); !absl::StartsWith(version, "2.")) {
    throw UsageError(absl::StrCat(file, ": has version ", version, " of the format; 2.x can be read"));
  }
  dump.rank = rank_of(file, root);
  if (root.has("time_ns")) dump.time_ns = root["time_ns"].number();
  std::map<std::string, size_t> index;
  const Field config = root["pg_config"];
  if (!config.json().is_object()) config.refuse("is not an object");
  for (const auto& [name, value] : config.json().items()) {
    const Field group(dump.file, absl::StrCat("pg_config['", name, "']"), value);
    index[name] = dump.groups.size();
    dump.groups.push_back({name, group["desc"].text(), parse_rank_list(group["ranks"]), 0, group.has("in_process")});
    if (group.has("pg_id")) dump.groups.back().last = last_call(root, group["pg_id"]);
  }
  if (!root.has("entries")) return dump;  // PyTorch leaves an empty list out
  const Field entries = root["entries"];
  for (size_t i = 0; i < entries.size(); ++i) {
    const Field entry(dump.file, absl::StrCat("entries[", i, "]"), entries.at(i).json());
    const Field name = entry["process_group"];
    if (name.size() != 2) name.refuse("is not a name and a description");
    const auto found = index.find(name.at(0).text());
    if (found == index.end()) name.at(0).refuse("is no group of pg_config");
    FlightCall call;
    call.group = found->second;
    call.sequence = entry["collective_seq_id"].number();
    call.what = what_of(entry);
    if (entry.has("cause")) call.module = internal::in_module(entry["cause"]["module_path"].text());
    call.state = entry["state"].text();
    if (call.state != "completed" && entry.has("retired") && entry["retired"].json() == true) {
      call.state = entry.has("awaited") && entry["awaited"].json() == false ? "not awaited" : "failed";
    }
    call.created_ns = entry["time_created_ns"].number();
    if (entry.has("time_discovered_completed_ns")) {
      const Json& completed = entry["time_discovered_completed_ns"].json();
      if (completed.is_number_integer()) call.completed_ns = completed.get<int64_t>();  // PyTorch's may be null
    }
    auto& group = dump.groups[call.group];
    group.last = std::max({group.last, call.sequence, last_call(root, entry["pg_id"])});
    dump.calls.push_back(std::move(call));
  }
  return dump;
}

FlightDump read_flight_dump(const std::string& path) {
  std::ifstream in(user_path(path), std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) throw UsageError(absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
  return parse_flight_dump(path, text.str());
}

}  // namespace dtensor::tools
