#include "plan/plan_text.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace dtensor {
using namespace internal;

namespace {

using Kind = RedistributeStep::Kind;

const char* short_name_of(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "ar";
    case Kind::kReduceScatter:
      return "rs";
    case Kind::kAllGather:
      return "ag";
    case Kind::kAllToAll:
      return "a2a";
    default:
      return name_of(kind);
  }
}

}  // namespace

namespace internal {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kSlice:
      return "slice";
    case Kind::kFill:
      return "fill";
    case Kind::kAllReduce:
      return "all_reduce";
    case Kind::kReduceScatter:
      return "reduce_scatter";
    case Kind::kAllGather:
      return "all_gather";
    case Kind::kPermute:
      return "permute";
    case Kind::kAllToAll:
      return "all_to_all";
    case Kind::kTransfer:
      return "transfer";
  }
  return "unknown";
}

std::string layout_text(const Layout& layout) {
  return layout.is_boxes() ? layout.to_string() : to_string(layout.placements());
}

std::vector<std::string> Meshes::dim_names(const RedistributeStep& step) {
  std::vector<std::string> names;
  for (int64_t dim : step.dims) names.push_back(mesh().names()[dim]);
  if (step.kind == Kind::kTransfer) passed_ = true;
  return names;
}

int64_t Meshes::group_size(const RedistributeStep& step) const {
  if (step.kind == Kind::kTransfer) {
    const std::vector<int64_t> from = plan_.from.ranks(), to = plan_.to.ranks();
    std::vector<int64_t> ranks;
    std::set_union(from.begin(), from.end(), to.begin(), to.end(), std::back_inserter(ranks));
    return static_cast<int64_t>(ranks.size());
  }
  int64_t size = 1;
  for (int64_t dim : step.dims) size *= mesh().size(dim);
  return size;
}

std::string call_text(const RedistributeStep& step, Meshes& meshes, bool abbreviated) {
  const std::vector<std::string> names = meshes.dim_names(step);
  std::string text = abbreviated ? short_name_of(step.kind) : name_of(step.kind);
  if (!step.is_local() && !names.empty()) absl::StrAppend(&text, "(", absl::StrJoin(names, ","), ")");
  if (step.chunks > 1) absl::StrAppend(&text, " x", step.chunks);
  return text;
}

std::string steps_text(const RedistributePlan& plan, const std::vector<RedistributeStep>& steps, bool abbreviated) {
  Meshes meshes(plan);
  std::vector<std::string> parts;
  for (const RedistributeStep& step : steps) parts.push_back(call_text(step, meshes, abbreviated));
  return absl::StrJoin(parts, ", ");
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 10240) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) value /= 1024, ++unit;
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string seconds_text(double seconds) {
  if (seconds < 1e-3) return absl::StrFormat("%.1f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.2f ms", seconds * 1e3);
  return absl::StrFormat("%.2f s", seconds);
}

}  // namespace internal

std::string RedistributePlan::short_form() const { return steps_text(*this, steps, /*abbreviated=*/true); }

std::string RedistributePlan::to_string() const {
  std::string text = absl::StrCat(layout_text(from), " -> ", layout_text(to), ": ");
  if (steps.empty()) return text + "nothing to do";
  Meshes meshes(*this);
  for (const RedistributeStep& step : steps) {
    absl::StrAppend(&text, call_text(step, meshes, /*abbreviated=*/false));
    if (!step.is_local()) absl::StrAppend(&text, " ", step.bytes, " B");
    absl::StrAppend(&text, ", ");
  }
  return absl::StrCat(text, absl::StrFormat("%.1f us", seconds * 1e6));
}

}  // namespace dtensor
