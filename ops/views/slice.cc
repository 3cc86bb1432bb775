// Parts of dims: select, slice, split, diagonals, padding, rolling, triangles, and their backward. A sliced dim is
// computed whole, unless it is sliced at the borders of its blocks (blocks.h), or all of it is taken, or nothing; the
// others may be split.
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>

#include "ops/support/cut_dims.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/movement.h"
#include "ops/support/slice_range.h"
#include "ops/views/blocks.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

OutputDims without(OutputDims dims, int64_t dim) {
  dims.erase(dims.begin() + dim);
  return dims;
}

OutputDims with_new(OutputDims dims, int64_t dim) {
  dims.insert(dims.begin() + dim, kNoFactor);
  return dims;
}

OutputDims with_whole(OutputDims dims, const std::vector<int64_t>& whole) {
  for (int64_t d : whole) {
    if (d < static_cast<int64_t>(dims.size())) dims[d] = kNoFactor;
  }
  return dims;
}

OutputDims select(const OpCall& call, bool /*one_rank*/) {
  return without(same_dims(ndim(call)), dim_arg(call, "dim"));
}

OutputDims select_backward(const OpCall& call, bool /*one_rank*/) {
  return with_new(same_dims(ndim(call)), dim_arg(call, "dim", 1));
}

// Of a slice of a dim of `size`.
OutputDims sliced_dims(const OpCall& call, int64_t size) {
  const OutputDims dims = same_dims(ndim(call));
  return slice_range(call, size).moves_nothing(size) ? dims : with_whole(dims, {dim_arg(call, "dim")});
}

OutputDims slice(const OpCall& call, bool one_rank) {
  return one_rank ? same_dims(ndim(call)) : sliced_dims(call, call.inputs[0]->sizes()[dim_arg(call, "dim")]);
}

OutputDims slice_backward(const OpCall& call, bool one_rank) {
  return one_rank ? same_dims(ndim(call)) : sliced_dims(call, call.get_ints("input_sizes")->at(dim_arg(call, "dim")));
}

OutputDims narrow_copy(const OpCall& call, bool one_rank) {
  const int64_t dim = dim_arg(call, "dim"), length = call.get_int("length");
  const OutputDims dims = same_dims(ndim(call));
  return one_rank || length == 0 || length == call.inputs[0]->sizes()[dim] ? dims : with_whole(dims, {dim});
}

// The local computation of narrow_copy(), which takes all of a cut dim, or nothing.
void narrow_locally(OpRule& rule) {
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    const int64_t dim = wrap_dim(stack[stack_index(call, "dim")].toInt(), call.inputs[0]->ndim());
    if (is_cut(*call.inputs[0], dim)) {
      stack[stack_index(call, "start")] = 0;
      stack[stack_index(call, "length")] = call.outputs[0]->local_shape(call.i)[dim];
    }
    call.op.callBoxed(stack);
  };
}

OutputDims whole_dim(const OpCall& call) { return with_whole(same_dims(ndim(call)), {dim_arg(call, "dim")}); }

OutputDims whole_dims(const OpCall& call, bool one_rank) {
  if (one_rank) return same_dims(ndim(call));
  std::vector<int64_t> dims;
  for (int64_t d : call.get_ints("dims").value_or(std::vector<int64_t>{})) dims.push_back(wrap_dim(d, ndim(call)));
  // Without dims, a tensor is rolled as one flat list.
  if (dims.empty() && call.has_arg("shifts")) return OutputDims(ndim(call), kNoFactor);
  return with_whole(same_dims(ndim(call)), dims);
}

// Windows of one element each, which become a new last dim, leave the dim as it is.
bool is_unsqueezed(int64_t size, int64_t step) { return size == 1 && step == 1; }

OutputDims unfold(const OpCall& call, bool one_rank) {
  const int64_t dim = dim_arg(call, "dimension"), size = call.get_int("size");
  const OutputDims dims = same_dims(ndim(call));
  if (one_rank || is_unsqueezed(size, call.get_int("step"))) return with_new(dims, ndim(call));
  OutputDims windows = with_new(with_whole(dims, {dim}), ndim(call));
  const bool is_one_window = dim < ndim(call) && size == call.inputs[0]->sizes()[dim];
  if (is_one_window) windows.back() = static_cast<int>(dim);
  return windows;
}

// The local computation of unfold() where the dim is cut: windows of one element each, or one window, of which each
// rank holds its part.
void unfold_locally(OpRule& rule) {
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    const at::Tensor part = stack[0].toTensor();
    const int64_t dim = wrap_dim(stack[stack_index(call, "dimension")].toInt(), part.dim());
    c10::IValue& size = stack[stack_index(call, "size")];
    if (!is_cut(*call.inputs[0], dim)) return call.op.callBoxed(stack);
    if (!is_unsqueezed(size.toInt(), stack[stack_index(call, "step")].toInt())) {
      size = part.size(dim);
    } else if (part.size(dim) == 0) {  // ATen finds no window in a part without elements
      return leave_result(call, stack, part.unsqueeze(-1));
    }
    call.op.callBoxed(stack);
  };
  takes_nothing_if_empty(rule);
}

// The sizes of results without elements follow from the whole input.
void is_empty_by_sizes(OpRule& rule) {
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) { call.op.callBoxed(stack); };
  rule.local_calls_operator = true;
  takes_nothing_if_empty(rule);
}

OutputDims unfold_backward(const OpCall& call, bool one_rank) {
  const std::vector<int64_t> sizes = call.get_ints("input_sizes").value_or(std::vector<int64_t>{});
  const auto n = static_cast<int64_t>(sizes.size());
  const int64_t dim = wrap_dim(call.get_int("dim"), n), size = call.get_int("size");
  if (one_rank || is_unsqueezed(size, call.get_int("step"))) return same_dims(n);
  OutputDims dims = with_whole(same_dims(n), {dim});
  if (dim < n && size == sizes[dim]) dims[dim] = static_cast<int>(n);
  return dims;
}

void unfold_backward_locally(OpRule& rule) {
  rule.local = [otherwise = std::move(rule.local)](const LocalCall& call, torch::jit::Stack& stack) {
    const Spec& result = *call.outputs[0];
    const int64_t dim = wrap_dim(stack[stack_index(call, "dim")].toInt(), result.ndim());
    if (!is_cut(result, dim)) return otherwise(call, stack);
    const Shape own = result.local_shape(call.i);
    if (own[dim] == 0)  // ATen finds no window in a part without elements
      return leave_result(call, stack, stack[0].toTensor().new_empty(at::IntArrayRef(own.data(), own.size())));
    c10::IValue& size = stack[stack_index(call, "size")];
    if (size.toInt() == result.sizes()[dim]) size = own[dim];
    otherwise(call, stack);
  };
}

OutputDims diagonal(const OpCall& call, bool /*one_rank*/) {
  const int64_t dim1 = dim_arg(call, "dim1"), dim2 = dim_arg(call, "dim2");
  const OutputDims rest = without(without(same_dims(ndim(call)), std::max(dim1, dim2)), std::min(dim1, dim2));
  return with_new(rest, static_cast<int64_t>(rest.size()));
}

// The inverse: the last dim becomes two.
OutputDims to_diagonal(const OpCall& call, bool /*one_rank*/) {
  const int64_t dim1 = dim_arg(call, "dim1", 1), dim2 = dim_arg(call, "dim2", 1);
  return with_new(with_new(same_dims(ndim(call) - 1), std::min(dim1, dim2)), std::max(dim1, dim2));
}

// ------------------------------------------------------------ several results

FactorRule split(const OpCall& call, bool one_rank) {
  const int64_t size = call.inputs[0]->sizes()[dim_arg(call, "dim")];
  const std::vector<int64_t> pieces = piece_sizes(call, size);
  const bool stays = std::all_of(pieces.begin(), pieces.end(), [&](int64_t n) { return n == 0 || n == size; });
  return movement(call, one_rank || stays ? same_dims(ndim(call)) : whole_dim(call), static_cast<int>(pieces.size()));
}

FactorRule unbind(const OpCall& call) {
  return movement(call, select(call, false), static_cast<int>(call.inputs[0]->sizes()[dim_arg(call, "dim")]));
}

// ------------------------------------------------------------ a part replaced

// self, with src in place of the slice that `part` takes: each element comes from one of them.
FactorRule replace(const OpCall& call, OutputDims self, OutputDims part) {
  FactorRule rule;
  rule.inputs = {same_dims(ndim(call)), std::move(part)};
  rule.outputs = {std::move(self)};
  pass_all_partials(rule, {0, 1});
  return rule;
}

FactorRule select_scatter(const OpCall& call) { return replace(call, whole_dim(call), select(call, false)); }

FactorRule slice_scatter(const OpCall& call, bool one_rank) {
  return replace(call, slice(call, one_rank), slice(call, one_rank));
}

FactorRule diagonal_scatter(const OpCall& call) {
  const OutputDims self = with_whole(same_dims(ndim(call)), {dim_arg(call, "dim1"), dim_arg(call, "dim2")});
  return replace(call, self, diagonal(call, false));
}

// ------------------------------------------------------------ padding, triangles

FactorRule constant_pad_nd(const OpCall& call, bool one_rank) {
  OutputDims dims = same_dims(ndim(call));
  const std::vector<int64_t> pad = call.get_ints("pad").value_or(std::vector<int64_t>{});
  for (size_t k = 0; k < pad.size(); ++k) {
    if (pad[k] != 0 && !one_rank) dims.at(dims.size() - 1 - k / 2) = kNoFactor;
  }
  const bool fills = adds_places(pad) && !call.arg("value").toScalar().equal(0);
  return movement(call, dims, 1, fills ? Passing::kNone : Passing::kAll);
}

// Rows and columns may both be cut: the diagonal moves with the part.
OpRule triangle() {
  OpRule rule;
  rule.per_dim = [](const OpCall& call, int64_t mesh_dim) {
    auto all = strategies(movement(call, same_dims(ndim(call))), call, mesh_dim);
    // Interleaved runs of rows do not have a single diagonal.
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const DimStrategy& s) {
                               return s.inputs[0].is_strided_shard() && s.inputs[0].dim() >= ndim(call) - 2;
                             }),
              all.end());
    return all;
  };
  rule.local = [](const LocalCall& call, torch::jit::Stack& stack) {
    const LocalLayout layout = call.inputs[0]->local_layout(call.i);
    const size_t n = layout.dims.size();
    const size_t diagonal = stack_index(call, "diagonal");
    stack[diagonal] = stack[diagonal].toInt() + layout.offsets[n - 2] - layout.offsets[n - 1];
    call.op.callBoxed(stack);
  };
  return rule;
}

// ------------------------------------------------------------ shapes that ATen has no meta kernel for

OutputMetas like_input(const OpCall& call) { return metas_of({at::empty_like(meta_tensor(*call.inputs[0]))}); }

// On a CPU the two parts of each dim are concatenated one dim after the other, which keeps channels-last where both
// parts have it. GPU kernels write row-major.
OutputMetas roll_metas(const OpCall& call) {
  at::Tensor rolled = meta_tensor(*call.inputs[0]);
  const std::vector<int64_t> shifts = *call.get_ints("shifts");
  const std::vector<int64_t> dims = call.get_ints("dims").value_or(std::vector<int64_t>{});
  if (rolled.numel() == 0) return metas_of({at::empty_like(rolled)});
  if (dims.empty() || call.mesh.world().device_type() != c10::DeviceType::CPU)
    return contiguous_metas(rolled.sizes(), {call.inputs[0]->dtype()});
  for (size_t k = 0; k < std::min(dims.size(), shifts.size()); ++k) {
    const int64_t dim = wrap_dim(dims[k], ndim(call)), size = rolled.size(dim);
    const int64_t start = ((size - shifts[k]) % size + size) % size;
    rolled = at::cat({rolled.narrow(dim, start, size - start), rolled.narrow(dim, 0, start)}, dim);
  }
  return metas_of({rolled});
}

OutputMetas input_sizes_metas(const OpCall& call) {
  return contiguous_metas(*call.get_ints("input_sizes"), {call.inputs[0]->dtype()});
}

struct Movement {
  std::vector<std::string> ops;
  OutputDims (*dims)(const OpCall&, bool one_rank);
  const char* sizes_arg = nullptr;  // to be replaced by local sizes
  OutputMetas (*metas)(const OpCall&) = nullptr;
  Passing passing = Passing::kAll;
  void (*add)(OpRule&) = nullptr;
};

}  // namespace

const RuleFamily slice_rules("slice", [](RuleRegistry& registry) {
  const Movement table[] = {
      {{"aten::select.int", "aten::select_copy.int"}, select},
      {{"aten::select_backward"}, select_backward, "input_sizes"},
      {{"aten::slice.Tensor", "aten::slice_copy.Tensor"}, slice, nullptr, nullptr, Passing::kAll, slice_at_borders},
      {{"aten::slice_backward"}, slice_backward, "input_sizes", nullptr, Passing::kAll, slice_backward_at_borders},
      {{"aten::narrow_copy"}, narrow_copy, nullptr, nullptr, Passing::kAll, narrow_locally},
      {{"aten::unfold", "aten::unfold_copy"}, unfold, nullptr, nullptr, Passing::kAll, unfold_locally},
      {{"aten::unfold_backward"},
       unfold_backward,
       "input_sizes",
       input_sizes_metas,
       Passing::kLinear,
       unfold_backward_locally},
      {{"aten::diagonal", "aten::diagonal_copy"}, diagonal, nullptr, nullptr, Passing::kAll, is_empty_by_sizes},
      {{"aten::diagonal_backward"}, to_diagonal, "input_sizes"},
      {{"aten::diag_embed"}, to_diagonal},
      {{"aten::flip"}, whole_dims, nullptr, like_input},
      {{"aten::roll"}, whole_dims, nullptr, roll_metas},
  };
  for (const Movement& m : table) {
    OpRule rule = factor_op_by_ranks([dims = m.dims, passing = m.passing](const OpCall& call, bool one_rank) {
      return movement(call, dims(call, one_rank), 1, passing);
    });
    if (m.sizes_arg != nullptr) rule.local = with_local_sizes(m.sizes_arg);
    if (m.metas != nullptr) rule.metas = m.metas;
    if (m.add != nullptr) m.add(rule);
    registry.add(m.ops, rule);
  }
  OpRule pieces = factor_op_by_ranks(split);
  split_at_borders(pieces);
  registry.add({"aten::split.Tensor", "aten::split_with_sizes", "aten::unsafe_split.Tensor",
                "aten::unsafe_split_with_sizes", "aten::split_copy.Tensor", "aten::split_with_sizes_copy"},
               pieces);
  for (const char* op : {"aten::unbind.int", "aten::unbind_copy.int"}) registry.add(op, factor_op(unbind));
  registry.add("aten::select_scatter", factor_op(select_scatter));
  OpRule replaced = factor_op_by_ranks(slice_scatter);
  slice_scatter_at_borders(replaced);
  registry.add("aten::slice_scatter", replaced);
  registry.add("aten::diagonal_scatter", factor_op(diagonal_scatter));
  registry.add("aten::constant_pad_nd", factor_op_by_ranks(constant_pad_nd));
  for (const char* op : {"aten::tril", "aten::triu"}) registry.add(op, triangle());
});

}  // namespace dtensor::internal
