#include "plan/cost_json.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

namespace dtensor::internal {
namespace {

constexpr std::pair<const char*, c10::ScalarType> kProductDtypes[] = {{"float64", at::kDouble},
                                                                      {"float32", at::kFloat},
                                                                      {"float16", at::kHalf},
                                                                      {"bfloat16", at::kBFloat16},
                                                                      {"int8", at::kChar},
                                                                      {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                                      {"float8_e5m2", at::kFloat8_e5m2},
                                                                      {"float8_e4m3fnuz", at::kFloat8_e4m3fnuz},
                                                                      {"float8_e5m2fnuz", at::kFloat8_e5m2fnuz},
                                                                      {"complex64", at::kComplexFloat},
                                                                      {"complex128", at::kComplexDouble}};

bool is_finite_number(const CostJson& json) { return json.is_number() && std::isfinite(json.get<double>()); }

}  // namespace

CostJson parse_cost_json(const std::string& text, const std::string& where) {
  try {
    return CostJson::parse(text);
  } catch (const CostJson::exception& e) {
    TORCH_CHECK_VALUE(false, where, " is no JSON: ", e.what());
  }
}

std::string read_cost_file(const std::string& path, const std::string& where, const std::string& advice) {
  std::ifstream file(path);
  TORCH_CHECK_VALUE(file.good(), where, " cannot read ", path, "; ", advice);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

CostFields::CostFields(const CostJson& json, std::string where) : json_(json), where_(std::move(where)) {
  TORCH_CHECK_VALUE(json.is_object(), where_, ": is ", std::string(json.type_name()), ", not an object");
}

const CostJson* CostFields::find(const char* field) {
  known_.emplace_back(field);
  auto it = json_.find(field);
  return it == json_.end() ? nullptr : &*it;
}

void CostFields::number(const char* field, double& value) {
  const CostJson* json = find(field);
  if (json == nullptr) return;
  TORCH_CHECK_VALUE(is_finite_number(*json) && json->get<double>() > 0, where_, ": `", field, "` is ", json->dump(),
                    "; give a number greater than 0");
  value = json->get<double>();
}

void CostFields::number_or_zero(const char* field, double& value) {
  const CostJson* json = find(field);
  if (json == nullptr) return;
  TORCH_CHECK_VALUE(is_finite_number(*json) && json->get<double>() >= 0, where_, ": `", field, "` is ", json->dump(),
                    "; give a number of at least 0");
  value = json->get<double>();
}

void CostFields::number(const char* field, int64_t& value) {
  const CostJson* json = find(field);
  if (json == nullptr) return;
  TORCH_CHECK_VALUE(json->is_number_integer() && json->get<int64_t>() > 0, where_, ": `", field, "` is ", json->dump(),
                    "; give a whole number greater than 0");
  value = json->get<int64_t>();
}

void CostFields::boolean(const char* field, bool& value) {
  const CostJson* json = find(field);
  if (json == nullptr) return;
  TORCH_CHECK_VALUE(json->is_boolean(), where_, ": `", field, "` is ", json->dump(), "; give true or false");
  value = json->get<bool>();
}

void CostFields::text(const char* field, std::string& value) {
  const CostJson* json = find(field);
  if (json == nullptr) return;
  TORCH_CHECK_VALUE(json->is_string() && !json->get<std::string>().empty(), where_, ": `", field, "` is ", json->dump(),
                    "; give a text");
  value = json->get<std::string>();
}

void CostFields::require(const std::vector<const char*>& fields) const {
  for (const char* field : fields) TORCH_CHECK_VALUE(json_.contains(field), where_, ": `", field, "` is missing");
}

void CostFields::check_all_known() const {
  for (auto it = json_.begin(); it != json_.end(); ++it) {
    TORCH_CHECK_VALUE(std::find(known_.begin(), known_.end(), it.key()) != known_.end(), where_, ": unknown field `",
                      it.key(), "`; known are ", c10::Join(", ", known_));
  }
}

void read_flops_by_dtype(CostFields& fields, std::map<c10::ScalarType, double>& flops) {
  for (const auto& [name, dtype] : kProductDtypes) {
    if (fields.find(name) != nullptr) fields.number(name, flops[dtype]);
  }
}

CostJson write_flops_by_dtype(const std::map<c10::ScalarType, double>& flops) {
  CostJson json = CostJson::object();
  for (const auto& [dtype, number] : flops) {
    TORCH_CHECK_VALUE(std::any_of(std::begin(kProductDtypes), std::end(kProductDtypes),
                                  [d = dtype](const auto& known) { return known.second == d; }),
                      "[cost_model] flops_by_dtype has ", dtype, ", for which files have no field");
  }
  for (const auto& [name, dtype] : kProductDtypes) {
    if (const auto found = flops.find(dtype); found != flops.end()) json[name] = found->second;
  }
  return json;
}

}  // namespace dtensor::internal
