// Layouts of a whole model on a mesh with a data dim, a tensor dim, and perhaps one for experts and one for sequences,
// as search_module_layouts() finds them or a program writes them.
//
//   ModuleLayouts layouts{{{"dp", 16}, {"tp", 4}}, ParallelPlan::load("plan.json"), {"layers.*", ""}};
//   apply_layouts(*model, mesh, layouts);
//   layouts.save("layouts.json");                       // and ModuleLayouts::load("layouts.json")
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dtensor/layout_settings.h"
#include "dtensor/parallel_style.h"
#include "dtensor/step_prediction.h"
#include "mesh/device_mesh.h"

namespace torch::nn {
class Module;
}

namespace dtensor {

// What a rank holds at the peak of a step, in bytes; the sum is StepPrediction::peak_bytes.
struct LayoutMemory {
  int64_t parameters = 0;
  int64_t gradients = 0;  // in a pipeline before they are reduced
  int64_t optimizer_states = 0;
  int64_t gathered = 0;  // parameters that fully_shard() has gathered at the peak
  // What the peak is beyond these: activations, inputs, results that are under way. Less than that where the peak comes
  // before all gradients are there.
  int64_t activations = 0;

  // "parameters 1.0 GiB, gradients 1.0 GiB, optimizer states 2.0 GiB, gathered parameters 0.5 GiB, activations and
  // other 3.5 GiB"
  std::string to_string() const;
};

// Layouts of a model with two to five mesh dims.
struct ModuleLayouts {
  // {"dp", 16}, {"tp", 4}: the data dim, shard_dim if it has a name, one for experts if there is any, context_dim if it
  // has a name, the tensor dim.
  NamedNumbers mesh;
  ParallelPlan styles;              // over the tensor dim; modules without one are replicated there
  std::vector<std::string> groups;  // patterns of the modules that fully_shard() is called for; none: replicated
  StepPrediction step;              // predicted on a mesh of these sizes
  // Of the program whose step was predicted; apply_layouts() does not use them.
  NamedNumbers settings = {};
  int64_t micro_batches = 1;
  // Of the pipeline, if stages > 1: each of the stages / stages_per_rank pipeline ranks has a mesh of its own of the
  // sizes above. `schedule`: the name that make_pipeline_schedule() takes.
  int64_t stages = 1, stages_per_rank = 1;
  std::string schedule = "";
  // Patterns of modules whose own parameters, [number of experts, ...] each, are sharded by dim 0 over the mesh dim for
  // experts.
  std::vector<std::string> experts = {};
  // Of the mesh dims, the one for sequences: the program shards its inputs by dim 1 over it, and where it has several
  // ranks runs steps in a scope ContextParallel(context_dim). "": there is none. apply_layouts() does not use it.
  std::string context_dim = "";
  // Of the mesh dims, the one that groups are sharded over instead of the data dim, whose ranks have copies. "": none
  // is.
  std::string shard_dim = "";
  // Groups are gathered ahead (FullyShardOptions::prefetch), and gradients are reduced while backward goes on
  // (GradientBucketOptions::overlap).
  bool overlap = false;
  LayoutMemory memory = {};  // predicted, as `step`

  // "dp=16 tp=4 stages=8 1F1B checkpoint=1 micro_batches=8 fully_shard(layers.*, the model) overlap"
  std::string name() const;
  // As JSON: an object with a field for each member, and "predicted", which is for people: load() does not read it, and
  // `step` and `memory` of what it returns are empty. "mesh" must be there; a missing field has the value above.
  std::string to_json() const;
  // Errors (c10::Error): the file cannot be written or read, or is no such object; an unknown field, a value of another
  // type or out of range, stages without such a schedule, a schedule without stages. The text names file and field.
  void save(const std::string& path) const;
  static ModuleLayouts load(const std::string& path);
};

// Shards the weights of experts, then calls parallelize_module() with the styles over the tensor dim; `styles` must not
// match modules of experts. Then calls fully_shard() over the data dim, or shard_dim, for each module that a pattern of
// `groups` matches, once where it is at several paths, and, if there are groups, for each module of experts by dim 1:
// inner modules first, and none whose parameters are all in groups already. With `overlap` it sets that option of the
// gradient buckets of the mesh's world. The sizes of layouts.mesh do not count, only the names. Errors (ValueError),
// before the module is changed: mesh dims that are not those which ModuleLayouts::mesh lists; experts without a mesh
// dim for them; a pattern of `groups` or `experts` that matches nothing, or experts a module without parameters of its
// own. Those of both functions.
void apply_layouts(torch::nn::Module& module, const DeviceMesh& mesh, const ModuleLayouts& layouts);

namespace internal {

// What is wrong with stages, stages_per_rank, schedule and micro_batches; "": nothing.
std::string pipeline_fault(const ModuleLayouts& layouts);
// What is wrong with the number and order of the mesh dims; "": nothing.
std::string mesh_fault(const ModuleLayouts& layouts);

}  // namespace internal

}  // namespace dtensor
