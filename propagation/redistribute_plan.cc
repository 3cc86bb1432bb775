#include "propagation/redistribute_plan.h"

#include <c10/util/Exception.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtensor {

Collective RedistributeStep::collective() const {
  switch (kind) {
    case Kind::kAllReduce:
      return Collective::kAllReduce;
    case Kind::kReduceScatter:
      return Collective::kReduceScatter;
    case Kind::kAllGather:
      return Collective::kAllGather;
    case Kind::kAllToAll:
      return Collective::kAllToAll;
    case Kind::kSlice:
    case Kind::kFill:
      break;
  }
  TORCH_INTERNAL_ASSERT(false, "a local step has no collective");
}

bool RedistributePlan::is_local() const { return num_collectives() == 0; }

int64_t RedistributePlan::num_collectives() const {
  int64_t n = 0;
  for (const RedistributeStep& step : steps) n += step.is_local() ? 0 : 1;
  return n;
}

std::string RedistributePlan::explain(const DeviceMesh& mesh) const {
  std::string text = absl::StrCat(to_string(from), " -> ", to_string(to), ": ");
  if (steps.empty()) return text + "nothing to do";
  std::vector<std::string> parts;
  for (const RedistributeStep& step : steps) {
    if (step.kind == RedistributeStep::Kind::kSlice) {
      parts.push_back("slice");
    } else if (step.kind == RedistributeStep::Kind::kFill) {
      parts.push_back("fill");
    } else {
      std::vector<std::string> names;
      for (int64_t dim : step.dims) names.push_back(mesh.names()[dim]);
      parts.push_back(absl::StrCat(std::string(to_string(step.collective())), "(", absl::StrJoin(names, ","), ") ",
                                   step.bytes, " B"));
    }
  }
  return absl::StrCat(text, absl::StrJoin(parts, ", "), absl::StrFormat(", %.1f us", seconds * 1e6));
}

}  // namespace dtensor
