// Entries of a ParallelPlan in JSON files, and fields of other types there.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "dtensor/parallel_style.h"

namespace dtensor::internal {

// [{"pattern": "layers.*.wo", "style": "RowwiseParallel", "output": "S(1)"}]
nlohmann::ordered_json json_of_entries(const std::vector<ParallelPlan::Entry>& entries);

// Errors of all (ValueError): a value of another type; the text names `field`.

// Besides: an unknown key, or a style that parallelize_module() would refuse for any module; the text names the
// pattern.
std::vector<ParallelPlan::Entry> entries_of(const nlohmann::ordered_json& json, const std::string& field);
std::string text_of_json(const nlohmann::ordered_json& json, const std::string& field);
// Besides: a number below `least`, or above the largest int64_t.
int64_t number_of_json(const nlohmann::ordered_json& json, const std::string& field, int64_t least);

}  // namespace dtensor::internal
