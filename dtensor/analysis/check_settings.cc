#include "dtensor/analysis/check_settings.h"

#include <c10/util/Exception.h>

#include <set>

namespace dtensor::internal {

void check_settings(const char* function, const std::vector<std::string>& mesh_dims, const LayoutSettings& settings) {
  std::set<std::string> names;
  const auto add = [&](const std::string& name) {
    TORCH_CHECK_VALUE(names.insert(name).second, "[", function, "] '", name,
                      "' is the name of two mesh dims or settings");
  };
  for (const std::string& name : mesh_dims) add(name);
  for (const auto& [name, values] : settings) {
    add(name);
    TORCH_CHECK_VALUE(!values.empty(), "[", function, "] the setting '", name, "' has no values to try");
  }
}

}  // namespace dtensor::internal
