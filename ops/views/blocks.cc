#include "ops/views/blocks.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ops/support/cut_dims.h"
#include "ops/support/movement.h"
#include "ops/support/slice_range.h"

namespace dtensor::internal {
namespace {

struct Blocks {
  int64_t count = 1;
  int64_t size = 0;
};

// The blocks along the mesh dim, which must be the only one that cuts `dim` into blocks of one size.
std::optional<Blocks> blocks_of(const Spec& spec, int64_t mesh_dim, int64_t dim) {
  if (cutting_mesh_dims(spec, {dim}) != std::vector<int64_t>{mesh_dim}) return std::nullopt;
  const Placement& p = spec.placements()[mesh_dim];
  const int64_t count = p.is_strided_shard() ? p.split_factor() : 1;
  const int64_t size = spec.sizes()[dim];
  if (size == 0 || size % count != 0) return std::nullopt;
  return Blocks{count, size / count};
}

Placement in_blocks(int64_t dim, int64_t count) { return count > 1 ? StridedShard(dim, count) : Shard(dim); }

// The number of blocks of a tensor on the mesh dim that cuts `dim`; 0: it is whole.
int64_t num_blocks(const Spec& spec, int64_t dim) {
  const std::vector<int64_t> cutting = cutting_mesh_dims(spec, {dim});
  if (cutting.empty()) return 0;
  const Placement& p = spec.placements()[cutting[0]];
  return p.is_strided_shard() ? p.split_factor() : 1;
}

struct Range {
  int64_t begin = 0, end = 0;
};

// The range that slice() takes of a dim of `size`; nullopt: not contiguous, or empty.
std::optional<Range> range_of(const OpCall& call, int64_t size) {
  const SliceRange taken = slice_range(call, size);
  if (taken.step != 1 || taken.count == 0) return std::nullopt;
  return Range{taken.start, taken.start + taken.count};
}

bool lies_on_borders(const Range& range, int64_t block) { return range.begin % block == 0 && range.end % block == 0; }

// Adds to the strategies of `rule` the one that `more` finds along a mesh dim, if any.
void add_strategy(OpRule& rule, std::optional<DimStrategy> (*more)(const OpCall&, int64_t mesh_dim)) {
  rule.per_dim = [per_dim = std::move(rule.per_dim), more](const OpCall& call, int64_t mesh_dim) {
    std::vector<DimStrategy> all = per_dim(call, mesh_dim);
    if (auto strategy = more(call, mesh_dim)) all.push_back(*std::move(strategy));
    return all;
  };
}

using Local = std::function<void(const LocalCall&, torch::jit::Stack&)>;

void call_operator(const LocalCall& call, torch::jit::Stack& stack) { call.op.callBoxed(stack); }

// ------------------------------------------------------------ slices

int64_t dim_of(const OpCall& call) { return wrap_dim(call.get_int("dim"), call.inputs[0]->ndim()); }

std::optional<DimStrategy> slice_strategy(const OpCall& call, int64_t mesh_dim) {
  const Spec& self = *call.inputs[0];
  const int64_t dim = dim_of(call);
  const auto blocks = blocks_of(self, mesh_dim, dim);
  const auto range = range_of(call, self.sizes()[dim]);
  if (!blocks || !range || !lies_on_borders(*range, blocks->size)) return std::nullopt;
  return DimStrategy{{in_blocks(dim, (range->end - range->begin) / blocks->size)}, {self.placements()[mesh_dim]}};
}

std::optional<DimStrategy> slice_backward_strategy(const OpCall& call, int64_t mesh_dim) {
  const Spec& grad = *call.inputs[0];
  const int64_t dim = dim_of(call), size = call.get_ints("input_sizes")->at(dim);
  const auto blocks = blocks_of(grad, mesh_dim, dim);
  const auto range = range_of(call, size);
  if (!blocks || !range || size % blocks->size != 0 || !lies_on_borders(*range, blocks->size)) return std::nullopt;
  return DimStrategy{{in_blocks(dim, size / blocks->size)}, {grad.placements()[mesh_dim]}};
}

std::optional<DimStrategy> slice_scatter_strategy(const OpCall& call, int64_t mesh_dim) {
  auto strategy = slice_strategy(call, mesh_dim);
  if (!strategy) return std::nullopt;
  return DimStrategy{{strategy->inputs[0]}, {strategy->inputs[0], strategy->outputs[0]}};
}

// Sets the range of a slice that begins with the block `first` and has the size of `count` blocks, where a rank's part
// of a block has `part` elements.
void set_range(const LocalCall& call, torch::jit::Stack& stack, int64_t first, int64_t count, int64_t part) {
  stack[stack_index(call, "start")] = first * part;
  stack[stack_index(call, "end")] = (first + count) * part;
}

int64_t dim_on(const torch::jit::Stack& stack, const LocalCall& call, int64_t ndim) {
  return wrap_dim(stack[stack_index(call, "dim")].toInt(), ndim);
}

int64_t start_on(const torch::jit::Stack& stack, const LocalCall& call, int64_t size) {
  const c10::IValue& start = stack[stack_index(call, "start")];
  const int64_t at = start.isNone() ? 0 : start.toInt();
  return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size);
}

// `whole`: the tensor that has all blocks; `piece`: the slice taken from it, or written to it. Where nothing is taken,
// bounds that count from the end could take some of a rank's part.
void slice_locally(const LocalCall& call, torch::jit::Stack& stack, const Spec& whole, const Spec& piece,
                   const Local& otherwise) {
  const int64_t dim = dim_on(stack, call, whole.ndim()), count = num_blocks(whole, dim);
  if (count > 0 && piece.sizes()[dim] == 0) {
    set_range(call, stack, 0, 0, 0);
  } else if (count > 0 && whole.sizes()[dim] != piece.sizes()[dim]) {
    const int64_t block = whole.sizes()[dim] / count, part = whole.local_shape(call.i)[dim] / count;
    set_range(call, stack, start_on(stack, call, whole.sizes()[dim]) / block, piece.sizes()[dim] / block, part);
  }
  otherwise(call, stack);
}

// ------------------------------------------------------------ split

std::optional<DimStrategy> split_strategy(const OpCall& call, int64_t mesh_dim) {
  const Spec& self = *call.inputs[0];
  const int64_t dim = dim_of(call);
  const auto blocks = blocks_of(self, mesh_dim, dim);
  if (!blocks) return std::nullopt;
  DimStrategy strategy{{}, {self.placements()[mesh_dim]}};
  for (const int64_t piece : piece_sizes(call, self.sizes()[dim])) {
    if (piece % blocks->size != 0) return std::nullopt;
    strategy.outputs.push_back(in_blocks(dim, piece / blocks->size));
  }
  return strategy.outputs.empty() ? std::nullopt : std::optional(std::move(strategy));
}

// Splits by a list of sizes: split() by one size makes only one piece of an empty part.
void split_locally(const LocalCall& call, torch::jit::Stack& stack) {
  const Spec& self = *call.inputs[0];
  const int64_t dim = dim_on(stack, call, self.ndim());
  if (num_blocks(self, dim) == 0) return call.op.callBoxed(stack);
  std::vector<int64_t> sizes;
  for (const SpecPtr& piece : call.outputs) sizes.push_back(piece->local_shape(call.i)[dim]);
  stack[1] = sizes;
  std::string name = call.op.schema().name();
  if (const size_t at = name.find("with_sizes"); at == std::string::npos) {
    const bool copies = name.size() > 5 && name.compare(name.size() - 5, 5, "_copy") == 0;
    name = copies ? name.substr(0, name.size() - 5) + "_with_sizes_copy" : name + "_with_sizes";
  }
  c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "").callBoxed(stack);
}

// ------------------------------------------------------------ cat

// All inputs have blocks of the size that the first sharded one has, or none. Inputs that cat() skips are replicated.
std::optional<DimStrategy> cat_strategy(const OpCall& call, int64_t mesh_dim) {
  const auto first =
      std::find_if(call.inputs.begin(), call.inputs.end(), [](auto& s) { return !is_skipped_by_cat(*s); });
  if (first == call.inputs.end()) return std::nullopt;
  const int64_t dim = wrap_dim(call.get_int("dim"), (*first)->ndim());
  std::optional<Blocks> blocks;
  for (const SpecPtr& input : call.inputs) {
    if (is_skipped_by_cat(*input)) continue;
    if (input->ndim() != (*first)->ndim()) return std::nullopt;
    if (input->sizes()[dim] == 0) continue;
    for (int64_t m = 0; m < call.mesh.ndim(); ++m) {
      if (m != mesh_dim && cuts_dim(*input, m, dim)) return std::nullopt;
    }
    if (!blocks && mesh_dim >= 0 && cuts_dim(*input, mesh_dim, dim)) {
      blocks = blocks_of(*input, mesh_dim, dim);
      if (!blocks) return std::nullopt;
    }
  }
  if (!blocks) return std::nullopt;
  DimStrategy strategy;
  int64_t count = 0;
  for (const SpecPtr& input : call.inputs) {
    if (is_skipped_by_cat(*input)) {
      strategy.inputs.push_back(Replicate());
      continue;
    }
    const int64_t size = input->sizes()[dim];
    if (size % blocks->size != 0) return std::nullopt;
    strategy.inputs.push_back(in_blocks(dim, size / blocks->size));
    count += size / blocks->size;
  }
  strategy.outputs = {in_blocks(dim, count)};
  return strategy;
}

// ------------------------------------------------------------ halves

// glu(self, dim) and glu_backward(grad_output, self, dim): self in two blocks, its result or gradient likewise.
std::optional<DimStrategy> halves_strategy(const OpCall& call, int64_t mesh_dim) {
  const Spec& self = *call.input("self");
  const int64_t dim = wrap_dim(call.get_int("dim"), self.ndim());
  for (int64_t m = 0; m < call.mesh.ndim(); ++m) {
    if (m != mesh_dim && cuts_dim(self, m, dim)) return std::nullopt;
  }
  const Placement halves = StridedShard(dim, 2), half = Shard(dim);
  if (!call.has_arg("grad_output")) return DimStrategy{{half}, {halves}};
  return DimStrategy{{halves}, {half, halves}};
}

}  // namespace

void slice_at_borders(OpRule& rule) {
  add_strategy(rule, slice_strategy);
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    slice_locally(call, stack, *call.inputs[0], *call.outputs[0], call_operator);
  };
}

bool is_at_borders(const Spec& spec, int64_t dim, int64_t start, int64_t count, int64_t step) {
  for (int64_t m = 0; step == 1 && m < spec.mesh().ndim(); ++m) {
    if (const auto blocks = blocks_of(spec, m, dim)) return lies_on_borders({start, start + count}, blocks->size);
  }
  return false;
}

void slice_backward_at_borders(OpRule& rule) {
  add_strategy(rule, slice_backward_strategy);
  rule.local = [otherwise = std::move(rule.local)](const LocalCall& call, torch::jit::Stack& stack) {
    slice_locally(call, stack, *call.outputs[0], *call.inputs[0], otherwise);
  };
}

void slice_scatter_at_borders(OpRule& rule) {
  add_strategy(rule, slice_scatter_strategy);
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    slice_locally(call, stack, *call.inputs[0], *call.inputs[1], call_operator);
  };
}

std::vector<int64_t> piece_sizes(const OpCall& call, int64_t size) {
  if (call.has_arg("split_sizes")) return call.get_ints("split_sizes").value_or(std::vector<int64_t>{});
  const int64_t piece = call.get_int("split_size");
  std::vector<int64_t> sizes{std::min(piece, size)};
  for (int64_t begin = piece; piece > 0 && begin < size; begin += piece) sizes.push_back(std::min(piece, size - begin));
  return sizes;
}

void split_at_borders(OpRule& rule) {
  add_strategy(rule, split_strategy);
  rule.local = split_locally;
}

bool is_skipped_by_cat(const Spec& input) { return input.ndim() == 1 && input.sizes()[0] == 0; }

void cat_at_borders(OpRule& rule) { add_strategy(rule, cat_strategy); }

void halves_beside_each_other(OpRule& rule) { add_strategy(rule, halves_strategy); }

}  // namespace dtensor::internal
