// Parallel styles: how the parameters of one module lie over one mesh dim, and the layouts in which its operators take
// their input and give their result. parallelize_module.h applies them. Values without tensors.
//
//   ParallelPlan plan{{"layers.*.attn.w[qkv]", ColwiseParallel()},
//                     {"layers.*.attn.wo", RowwiseParallel({.output = Shard(1)})},
//                     {"layers.*.norm", SequenceParallel()}};
//   plan.save("plan.json");
//
// Source: torch.distributed.tensor.parallel. An input is redistributed from whatever layout it has, so that a style
// says only the layout that the module computes with (PyTorch: desired_input_layouts).
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "placement/placement.h"

namespace dtensor {

// Placements on the style's mesh dim. Negative dims count from the end of the tensor. nullopt: the style's default.
struct StyleLayouts {
  std::optional<Placement> input = std::nullopt;   // of the first tensor that a parameter of the module meets
  std::optional<Placement> output = std::nullopt;  // of the operator's first result
};

// The placement of one parameter on the style's mesh dim.
struct ParameterPlacement {
  std::string name;  // of the module's own: "weight"
  Placement placement;

  friend bool operator==(const ParameterPlacement& a, const ParameterPlacement& b) {
    return a.name == b.name && a.placement == b.placement;
  }
};

struct ParallelStyle {
  std::string kind;                                 // "ColwiseParallel"; the name of the function that made it
  StyleLayouts layouts;                             // as given
  std::vector<ParameterPlacement> parameters = {};  // of a ParameterStyle

  // "RowwiseParallel(output S(1))"
  std::string to_string() const;
  friend bool operator==(const ParallelStyle& a, const ParallelStyle& b) {
    return a.kind == b.kind && a.layouts.input == b.layouts.input && a.layouts.output == b.layouts.output &&
           a.parameters == b.parameters;
  }
};

// Of Linear, Embedding, EmbeddingBag, Conv1d to Conv3d and ConvTranspose1d to 3d: each rank computes some of the output
// features (channels). Default: input Replicate, output sharded by features.
ParallelStyle ColwiseParallel(StyleLayouts layouts = {});
// Of the same modules: each rank holds some of the input features (channels; of a table: rows). Default: input sharded
// by features (of a table: Replicate), output Replicate. With {.output = Shard(1)} the sum is a reduce_scatter.
ParallelStyle RowwiseParallel(StyleLayouts layouts = {});
// Of any module with parameters: these are replicated, activations sharded by dim 1, the sequence, or as given.
ParallelStyle SequenceParallel(StyleLayouts layouts = {});
// Of any module with parameters: only the layouts of its input and output; the parameters stay as they are.
// Each takes both layouts, and needs the one in its name. Error (ValueError): `layouts` lacks that one.
ParallelStyle PrepareInput(StyleLayouts layouts);
ParallelStyle PrepareOutput(StyleLayouts layouts);
// Of any module: the placements of its own parameters by name; those not named are replicated.
ParallelStyle ParameterStyle(std::vector<ParameterPlacement> parameters, StyleLayouts layouts = {});

namespace internal {

// What is wrong with a style that was built by hand or read from a file, as the functions above would not make it; "":
// nothing.
std::string fault_of(const ParallelStyle& style);

}  // namespace internal

// Which modules get which style. Patterns are globs over the paths of modules: `*` is any text, dots included, `?` one
// character, `[qkv]` one of these, `[!qkv]` none of these. "" is the module itself, which no other pattern matches.
struct ParallelPlan {
  struct Entry {
    std::string pattern;
    ParallelStyle style;

    friend bool operator==(const Entry& a, const Entry& b) { return a.pattern == b.pattern && a.style == b.style; }
  };

  ParallelPlan() = default;
  ParallelPlan(std::initializer_list<Entry> list) : entries(list) {}  // NOLINT: {{"fc", ColwiseParallel()}} is a plan

  std::vector<Entry> entries;

  // One line per entry: "layers.*.attn.wo: RowwiseParallel(output S(1))".
  std::string to_string() const;
  // As JSON. Errors (c10::Error): the file cannot be written or read, or is not such a plan, or has an entry that
  // parallelize_module() would refuse for any module; the text names the file, and the pattern of the entry or the
  // key that is there twice.
  void save(const std::string& path) const;
  static ParallelPlan load(const std::string& path);
};

}  // namespace dtensor
