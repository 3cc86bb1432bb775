// Prints the plan of a redistribution: the steps with their groups, bytes and peak memory, the alternatives, and the
// layouts before and after. Needs no devices, so that any number of ranks is possible.
//
//   ./bazelw run //tools:plan -- --mesh dp=4,tp=8 --shape 4096,4096 --dtype bf16 --from "S(0)R" --to "RS(1)"
//   ./bazelw run //tools:plan -- --mesh dp=16 --from "S(0)" --to_mesh ep=8 --to_ranks 8-15 --to "S(1)" --max_bytes
//   16MiB

#include <c10/util/Exception.h>

#include <algorithm>
#include <iostream>
#include <numeric>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "observe/layout_picture.h"
#include "observe/layout_text.h"
#include "plan/redistribute_planner.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, mesh, "dp=4,tp=8", "mesh dims as NAME=SIZE,...");
ABSL_FLAG(std::string, ranks, "", "ranks of --mesh in row-major order, such as 0-7 or 0,2,8-11; by default 0, 1, ...");
ABSL_FLAG(std::string, to_mesh, "", "another mesh, to which the tensor goes; by default the same");
ABSL_FLAG(std::string, to_ranks, "", "ranks of --to_mesh");
ABSL_FLAG(std::string, shape, "4096,4096", "sizes of the whole tensor");
ABSL_FLAG(std::string, dtype, "bf16", "f32, bf16, i64, ...");
ABSL_FLAG(std::string, from, "S(0)R", "layout before, one placement per mesh dim: R, S(dim), _S(dim, factor), P(sum)");
ABSL_FLAG(std::string, to, "RS(1)", "layout after, on --to_mesh if there is one");
ABSL_FLAG(std::string, max_bytes, "", "the most memory that a rank may need meanwhile, such as 2GiB");
ABSL_FLAG(std::string, cost_model, "",
          "file that //tools:calibrate wrote; by default DTENSOR_COST_MODEL's, else built-in numbers");
ABSL_FLAG(int64_t, ranks_per_node, 0, "consecutive ranks that share a node; by default as in the cost model");
ABSL_FLAG(bool, json, false, "print the plan as JSON, and nothing else");
ABSL_FLAG(std::string, svg, "", "write a picture of both layouts to this file");

namespace {

using namespace dtensor;
using namespace dtensor::tools;

// The ranks that --ranks or --to_ranks gives to a mesh.
std::vector<int64_t> ranks_of(const MeshShape& mesh, const std::string& mesh_flag, const std::string& flag,
                              const std::string& text) {
  std::vector<int64_t> ranks;
  if (text.empty()) {
    ranks.resize(static_cast<size_t>(mesh.size));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  ranks = parse_ranks(flag, text);
  if (static_cast<int64_t>(ranks.size()) != mesh.size) {
    throw UsageError(absl::StrCat("--", flag, " ", text, ": ", ranks.size(), ranks.size() == 1 ? " rank" : " ranks",
                                  ", but --", mesh_flag, " needs ", mesh.size));
  }
  return ranks;
}

CostModel model_of(const World& world) {
  CostModel model = *cost_model(world);
  if (const std::string file = absl::GetFlag(FLAGS_cost_model); !file.empty()) {
    try {
      model = CostModel::load(user_path(file));
    } catch (const c10::Error& e) {
      throw UsageError(absl::StrCat("--cost_model ", file, ": ", first_line(e.what_without_backtrace())));
    }
  }
  const int64_t per_node = absl::GetFlag(FLAGS_ranks_per_node);
  if (per_node < 0) throw UsageError(absl::StrCat("--ranks_per_node ", per_node, ": give at least 1"));
  if (per_node > 0) model.ranks_per_node = per_node;
  return model;
}

int run() {
  const MeshShape from_shape = parse_mesh("mesh", absl::GetFlag(FLAGS_mesh));
  const std::vector<int64_t> from_ranks = ranks_of(from_shape, "mesh", "ranks", absl::GetFlag(FLAGS_ranks));
  const bool two_meshes = !absl::GetFlag(FLAGS_to_mesh).empty();
  if (!two_meshes && !absl::GetFlag(FLAGS_to_ranks).empty()) {
    throw UsageError(
        absl::StrCat("--to_ranks ", absl::GetFlag(FLAGS_to_ranks), ": there is no --to_mesh; give one, such as ep=8"));
  }
  const MeshShape to_shape = two_meshes ? parse_mesh("to_mesh", absl::GetFlag(FLAGS_to_mesh)) : from_shape;
  const std::vector<int64_t> to_ranks =
      two_meshes ? ranks_of(to_shape, "to_mesh", "to_ranks", absl::GetFlag(FLAGS_to_ranks)) : from_ranks;

  const std::vector<int64_t> sizes = parse_sizes("shape", absl::GetFlag(FLAGS_shape));
  TensorMeta meta;
  meta.sizes.assign(sizes.begin(), sizes.end());
  meta.strides = row_major_strides(sizes);
  meta.dtype = parse_dtype("dtype", absl::GetFlag(FLAGS_dtype));

  const auto last = [](const std::vector<int64_t>& ranks) { return *std::max_element(ranks.begin(), ranks.end()); };
  const World world = World::abstract(1 + std::max(last(from_ranks), last(to_ranks)));
  const DeviceMesh from_mesh(world, from_shape.sizes, from_shape.names, from_ranks);
  const DeviceMesh to_mesh(world, to_shape.sizes, to_shape.names, to_ranks);
  const auto ndim = static_cast<int64_t>(sizes.size());
  const Placements from = parse_layout("from", absl::GetFlag(FLAGS_from), from_mesh, ndim);
  const Placements to = parse_layout("to", absl::GetFlag(FLAGS_to), to_mesh, ndim);

  set_cost_model(world, model_of(world));
  PlanOptions options;
  const std::string limit = absl::GetFlag(FLAGS_max_bytes);
  if (!limit.empty()) options.limits.max_bytes = parse_bytes("max_bytes", limit);
  RedistributePlan plan;
  try {
    plan = from_mesh == to_mesh ? plan_redistribution(from_mesh, meta, from, to, options)
                                : plan_transfer(meta, Layout(from_mesh, from), Layout(to_mesh, to), options);
  } catch (const c10::Error& e) {
    if (limit.empty()) throw;
    throw UsageError(absl::StrCat("--max_bytes ", limit, ": ", first_line(e.what_without_backtrace())));
  }

  const SpecPtr before = Spec::get(from_mesh, from, meta), after = Spec::get(to_mesh, to, meta);
  if (const std::string file = absl::GetFlag(FLAGS_svg); !file.empty()) {
    write_file("svg", file, layout_svg({{"from", before}, {"to", after}}, plan.to_string()));
  }
  if (absl::GetFlag(FLAGS_json)) {
    std::cout << plan.to_json();
    return 0;
  }
  std::cout << "From " << layout_text(*before) << "\nTo " << layout_text(*after) << "\n" << plan.explain();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("plan", "Says how a tensor goes from one layout to another, and what that costs.", argc, argv,
                     run);
}
