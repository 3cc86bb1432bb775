#include "dtensor/parallel_style.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr std::array<const char*, 6> kStyleKinds{"ColwiseParallel", "RowwiseParallel", "SequenceParallel",
                                                 "PrepareInput",    "PrepareOutput",   "ParameterStyle"};

// "no layout of the input: PrepareInput({.input = Shard(0)})"; "": the style has the layout in its name, if any.
std::string missing_layout(const ParallelStyle& style) {
  if (style.kind == "PrepareInput" && !style.layouts.input)
    return "no layout of the input: PrepareInput({.input = Shard(0)})";
  if (style.kind == "PrepareOutput" && !style.layouts.output)
    return "no layout of the output: PrepareOutput({.output = Replicate()})";
  return "";
}

ParallelStyle with_layout(ParallelStyle style) {
  const std::string missing = missing_layout(style);
  TORCH_CHECK_VALUE(missing.empty(), "[", style.kind, "] ", missing);
  return style;
}

}  // namespace

ParallelStyle ColwiseParallel(StyleLayouts layouts) { return {"ColwiseParallel", std::move(layouts)}; }
ParallelStyle RowwiseParallel(StyleLayouts layouts) { return {"RowwiseParallel", std::move(layouts)}; }
ParallelStyle SequenceParallel(StyleLayouts layouts) { return {"SequenceParallel", std::move(layouts)}; }

ParallelStyle PrepareInput(StyleLayouts layouts) { return with_layout({"PrepareInput", std::move(layouts)}); }
ParallelStyle PrepareOutput(StyleLayouts layouts) { return with_layout({"PrepareOutput", std::move(layouts)}); }

ParallelStyle ParameterStyle(std::vector<ParameterPlacement> parameters, StyleLayouts layouts) {
  return {"ParameterStyle", std::move(layouts), std::move(parameters)};
}

namespace internal {

std::string fault_of(const ParallelStyle& style) {
  if (std::find(kStyleKinds.begin(), kStyleKinds.end(), style.kind) == kStyleKinds.end())
    return absl::StrCat("no style is called '", style.kind, "'; there are ", absl::StrJoin(kStyleKinds, ", "));
  if (const std::string missing = missing_layout(style); !missing.empty())
    return absl::StrCat(style.kind, " has ", missing, ", in a file ",
                        style.kind == "PrepareInput" ? "\"input\": \"S(0)\"" : "\"output\": \"R\"");
  if (style.kind != "ParameterStyle" && !style.parameters.empty())
    return absl::StrCat(style.kind, " takes no placements of parameters, but has one of '",
                        style.parameters.front().name, "': use ParameterStyle");
  std::set<std::string> names;
  for (const ParameterPlacement& p : style.parameters) {
    if (!names.insert(p.name).second) return absl::StrCat("it places the parameter '", p.name, "' twice: do so once");
  }
  return "";
}

}  // namespace internal

std::string ParallelStyle::to_string() const {
  std::vector<std::string> parts;
  for (const ParameterPlacement& p : parameters) parts.push_back(p.name + " " + dtensor::to_string(p.placement));
  if (layouts.input) parts.push_back("input " + dtensor::to_string(*layouts.input));
  if (layouts.output) parts.push_back("output " + dtensor::to_string(*layouts.output));
  return kind + (parts.empty() ? "" : "(" + absl::StrJoin(parts, ", ") + ")");
}

std::string ParallelPlan::to_string() const {
  std::string text;
  for (const Entry& e : entries) absl::StrAppend(&text, e.pattern, ": ", e.style.to_string(), "\n");
  return text;
}

}  // namespace dtensor
