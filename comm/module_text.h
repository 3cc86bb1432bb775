// Where a call was, for texts: CommCause::module_path in a sentence.
#pragma once

#include <string>

namespace dtensor::internal {

// "in layers.0.attn.wq", with other texts around the path if they are given; "after layers.0.attn.wq" and "" as they
// are.
inline std::string in_module(const std::string& module_path, const std::string& before = "in ",
                             const std::string& behind = "") {
  return module_path.empty() || module_path.rfind("after ", 0) == 0 ? module_path : before + module_path + behind;
}

}  // namespace dtensor::internal
