// Reads cost models and clusters from JSON, and says in errors which field of which file is wrong.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace dtensor::internal {

using CostJson = nlohmann::ordered_json;

// Errors (ValueError): the text is no JSON, named `where`.
CostJson parse_cost_json(const std::string& text, const std::string& where);
// The whole file. Errors (ValueError): it cannot be read; the text ends with `advice`.
std::string read_cost_file(const std::string& path, const std::string& where, const std::string& advice);

// One JSON object, whose fields are read by name. Functions that read leave `value` as it is if there is no such field,
// and throw ValueError, with field and value, if it is of another type or outside of what they say.
class CostFields {
 public:
  // `where`: begins the text of errors. Error (ValueError): no object.
  CostFields(const CostJson& json, std::string where);

  void number(const char* field, double& value);  // greater than 0
  void number(const char* field, int64_t& value);
  void number_or_zero(const char* field, double& value);
  void boolean(const char* field, bool& value);
  void text(const char* field, std::string& value);  // not empty
  const CostJson* find(const char* field);           // null: no such field
  // Error (ValueError): the object lacks one of `fields`.
  void require(const std::vector<const char*>& fields) const;
  // Error (ValueError): the object has a field that no call above named.
  void check_all_known() const;

  std::string path(const char* field) const { return where_ + "." + field; }

 private:
  const CostJson& json_;
  const std::string where_;
  std::vector<std::string> known_;
};

// {"float32": 67e12, "bfloat16": 989e12}, by PyTorch's names, of the dtypes that matrix products have. Adds to `flops`
// what `fields` has of them.
void read_flops_by_dtype(CostFields& fields, std::map<c10::ScalarType, double>& flops);
CostJson write_flops_by_dtype(const std::map<c10::ScalarType, double>& flops);

}  // namespace dtensor::internal
