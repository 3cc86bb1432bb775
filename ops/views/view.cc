// Views: the same elements under other dims. Those that split and flatten dims go through ViewMap; in the others every
// dim of the output is a dim of the input, or new.
#include <ATen/InferSize.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/reshape.h>
#include <ATen/ops/squeeze.h>

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "ops/support/arguments.h"
#include "ops/support/meta_tensor.h"
#include "ops/support/movement.h"
#include "ops/views/view_map.h"
#include "plan/cost_model.h"
#include "plan/search/mesh_steps.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

// ------------------------------------------------------------ view, reshape

std::vector<int64_t> inferred_sizes(const OpCall& call) {
  const std::vector<int64_t> sizes = call.get_ints("size").value_or(std::vector<int64_t>{});
  const auto inferred = at::infer_size(sizes, call.inputs[0]->meta().numel());
  return {inferred.begin(), inferred.end()};
}

constexpr size_t kMaxWays = 64;  // kept from one mesh dim to the next, on meshes of more than three dims

// Complete strategies, built mesh dim by mesh dim. If the present layout can be followed nothing else is tried.
// Otherwise that mesh dim is gathered, or moved to a dim that can be followed to a plain Shard, whichever is cheaper.
// If there are many, the cheapest so far are continued.
class ViewSearch {
 public:
  explicit ViewSearch(const OpCall& call)
      : input_(*call.inputs[0]), mesh_shape_(call.mesh.shape()), cost_(cost_model(call.mesh.world())) {
    ways_.push_back({ViewMap(input_.sizes(), inferred_sizes(call)), {}, {}});
    for (size_t m = 0; m < mesh_shape_.size(); ++m) {
      std::vector<Way> before = std::exchange(ways_, {});
      for (const Way& way : before) extend(way);
      if (mesh_shape_.size() > 3 && ways_.size() > kMaxWays) keep_cheapest();
    }
    for (Way& way : ways_) result.push_back({{std::move(way.out)}, {std::move(way.in)}});
  }

  std::vector<Strategy> result;

 private:
  struct Way {
    ViewMap map;
    Placements in, out;
  };

  void extend(const Way& way) {
    const size_t m = way.in.size();
    if (try_placement(input_.placements()[m], way, /*plain=*/false)) return;
    try_placement(Replicate(), way, false);
    for (int64_t d = 0; d < input_.ndim(); ++d) {
      if (input_.sizes()[d] >= mesh_shape_[m]) try_placement(Shard(d), way, /*plain=*/true);
    }
  }

  bool try_placement(const Placement& p, Way way, bool plain) {
    auto followed = way.map.follow(p, mesh_shape_[way.in.size()]);
    if (!followed || (plain && followed->is_strided_shard())) return false;
    way.in.push_back(p);
    way.out.push_back(*std::move(followed));
    ways_.push_back(std::move(way));
    return true;
  }

  // By the lower bound of their cost; among equals the first.
  void keep_cheapest() {
    std::vector<std::pair<double, size_t>> order;
    for (const Way& way : ways_) {
      Placements to = input_.placements();
      std::copy(way.in.begin(), way.in.end(), to.begin());
      order.emplace_back(least_seconds(input_.mesh(), input_.meta(), input_.placements(), to, *cost_), order.size());
    }
    std::sort(order.begin(), order.end());
    order.resize(kMaxWays);
    std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    std::vector<Way> kept;
    for (const auto& [seconds, i] : order) kept.push_back(std::move(ways_[i]));
    ways_ = std::move(kept);
  }

  const Spec& input_;
  const std::vector<int64_t>& mesh_shape_;
  const std::shared_ptr<const CostModel> cost_;
  std::vector<Way> ways_;
};

// A view of the local part where its strides allow, else a copy.
void reshape_local(const LocalCall& call, torch::jit::Stack& stack) {
  const Shape sizes = call.outputs[0]->local_shape(call.i);
  at::Tensor result = at::reshape(stack[0].toTensor(), c10::IntArrayRef(sizes.data(), sizes.size()));
  const std::string& name = call.op.schema().name();
  if (absl::EndsWith(name, "_copy")) result = result.clone(at::MemoryFormat::Contiguous);
  leave_result(call, stack, std::move(result));
}

OpRule reshape_op() {
  OpRule rule;
  rule.whole = [](const OpCall& call) { return ViewSearch(call).result; };
  rule.local = reshape_local;
  rule.local_calls_operator = true;  // where the parts are contiguous
  return rule;
}

// Reinterprets the bits as another dtype: Partials do not pass. If the size of an element changes, the last dim is not
// the same dim any more.
FactorRule view_dtype_rule(const OpCall& call) {
  OutputDims dims = same_dims(call.inputs[0]->ndim());
  const c10::ScalarType to = call.arg("dtype").toScalarType();
  if (c10::elementSize(call.inputs[0]->dtype()) != c10::elementSize(to) && !dims.empty()) dims.back() = kNoFactor;
  return movement(call, dims, 1, Passing::kNone);
}

// A dense copy. Without elements in the last dim the other dims would have stride one, which is not a whole number of
// larger elements.
at::Tensor dense_copy(const at::Tensor& part, int64_t ratio) {
  if (part.size(-1) > 0) return part.clone(at::MemoryFormat::Contiguous);
  std::vector<int64_t> strides(part.dim(), ratio);
  strides.back() = 1;
  return at::empty_strided(part.sizes(), strides, part.options());
}

// Neighbours in the last dim may not be adjacent in a part's memory though they are in the whole: then the view as
// larger or smaller elements is a copy.
void dense_last_dim(const LocalCall& call, torch::jit::Stack& stack) {
  const at::Tensor part = stack[0].toTensor();
  const auto from = static_cast<int64_t>(part.element_size()),
             to = static_cast<int64_t>(c10::elementSize(call.outputs[0]->dtype()));
  if (from != to && part.dim() > 0) {
    bool fits = part.stride(-1) == 1 && part.storage_offset() * from % to == 0;
    for (int64_t d = 0; d < part.dim() - 1; ++d) fits = fits && part.stride(d) * from % to == 0;
    if (!fits) stack[0] = dense_copy(part, std::max<int64_t>(to / from, 1));
  }
  call.op.callBoxed(stack);
}

// ------------------------------------------------------------ dims come, go and change places

OutputDims permute(const OpCall& call) {
  OutputDims dims;
  const auto order = *call.get_ints("dims");
  for (int64_t d : order) dims.push_back(static_cast<int>(wrap_dim(d, ndim(call))));
  return dims;
}

// Permutes channels, if there are several groups of several.
OutputDims channel_shuffle(const OpCall& call) {
  OutputDims dims = same_dims(ndim(call));
  const int64_t groups = call.get_int("groups");
  if (dims.size() > 1 && groups != 1 && groups != call.inputs[0]->sizes()[1]) dims[1] = kNoFactor;
  return dims;
}

// Groups of one channel each stay unchanged, as a single group does, which divides any part.
void channel_shuffle_local(const LocalCall& local, torch::jit::Stack& stack) {
  Arguments args(local.op, stack);
  const Spec& self = *local.inputs[0];
  if (self.ndim() > 1 && args["groups"].toInt() == self.sizes()[1]) args.set("groups", 1);
  local.op.callBoxed(stack);
}

OutputMetas channel_shuffle_metas(const OpCall& call) {
  const at::Tensor self = meta_tensor(*call.inputs[0]);
  return metas_of({at::empty(self.sizes(), self.options(), self.suggest_memory_format())});
}

OutputDims transpose(const OpCall& call) {
  OutputDims dims = same_dims(ndim(call));
  if (!dims.empty()) std::swap(dims[dim_arg(call, "dim0")], dims[dim_arg(call, "dim1")]);
  return dims;
}

OutputDims t(const OpCall& call) {
  OutputDims dims = same_dims(ndim(call));
  std::reverse(dims.begin(), dims.end());
  return dims;
}

OutputDims unsqueeze(const OpCall& call) {
  OutputDims dims = same_dims(ndim(call));
  dims.insert(dims.begin() + dim_arg(call, "dim", 1), kNoFactor);
  return dims;
}

// The named dims of size 1; all dims of size 1 if none is named.
std::vector<int64_t> squeezed(const Spec& self, const std::optional<std::vector<int64_t>>& named) {
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < self.ndim(); ++d) {
    const bool asked =
        !named || std::any_of(named->begin(), named->end(), [&](int64_t n) { return wrap_dim(n, self.ndim()) == d; });
    if (asked && self.sizes()[d] == 1) dims.push_back(d);
  }
  return dims;
}

OutputDims squeeze(const OpCall& call) {
  const auto gone = squeezed(*call.inputs[0], call.has_arg("dim") ? call.get_ints("dim") : std::nullopt);
  OutputDims dims;
  for (int d : same_dims(ndim(call))) {
    if (std::find(gone.begin(), gone.end(), d) == gone.end()) dims.push_back(d);
  }
  return dims;
}

// A dim may have size 1 on one rank only: that one is kept.
void squeeze_local(const LocalCall& call, torch::jit::Stack& stack) {
  std::optional<std::vector<int64_t>> named;
  if (call.op.schema().argumentIndexWithName("dim"))
    named = stack[1].isInt() ? std::vector<int64_t>{stack[1].toInt()} : stack[1].toIntVector();
  at::Tensor result = at::squeeze(stack[0].toTensor(), squeezed(*call.inputs[0], named));
  if (absl::EndsWith(call.op.schema().name(), "_copy")) result = result.clone(at::MemoryFormat::Contiguous);
  leave_result(call, stack, std::move(result));
}

// A dim of which nothing is left may stay split.
OutputDims expand(const OpCall& call) {
  const auto& sizes = call.inputs[0]->sizes();
  const auto wanted = call.get_ints("size").value_or(std::vector<int64_t>{});
  const int64_t extra = static_cast<int64_t>(wanted.size()) - ndim(call);
  OutputDims dims(wanted.size(), kNoFactor);
  for (int64_t d = 0; d < ndim(call) && extra >= 0; ++d) {
    if (wanted[d + extra] <= 0 || wanted[d + extra] == sizes[d]) dims[d + extra] = static_cast<int>(d);
  }
  return dims;
}

OutputDims repeat(const OpCall& call) {
  const auto repeats = call.get_ints("repeats").value_or(std::vector<int64_t>{});
  const int64_t extra = static_cast<int64_t>(repeats.size()) - ndim(call);
  OutputDims dims(repeats.size(), kNoFactor);
  for (int64_t d = 0; d < ndim(call) && extra >= 0; ++d) {
    if (repeats[d + extra] <= 1) dims[d + extra] = static_cast<int>(d);
  }
  return dims;
}

// The parts of a conjugated tensor are lazily conjugated, but the distributed tensor has no conj bit: where ATen
// refuses the parts (view_as_real), they are resolved here. Then the result is a copied view.
void resolve_conj_first(const LocalCall& call, torch::jit::Stack& stack) {
  stack[0] = stack[0].toTensor().resolve_conj();
  call.op.callBoxed(stack);
}

OutputDims view_as_real(const OpCall& call) {
  OutputDims dims = same_dims(ndim(call));
  dims.push_back(kNoFactor);
  return dims;
}

OutputDims view_as_complex(const OpCall& call) { return same_dims(std::max<int64_t>(ndim(call) - 1, 0)); }

struct DimMovement {
  std::vector<std::string> ops;
  OutputDims (*dims)(const OpCall&);
  Passing passing = Passing::kAll;
  std::function<void(const LocalCall&, torch::jit::Stack&)> local = nullptr;
};

}  // namespace

const RuleFamily view_rules("view", [](RuleRegistry& registry) {
  registry.add({"aten::view", "aten::_unsafe_view", "aten::_reshape_alias", "aten::view_copy", "aten::_reshape_copy",
                "aten::_reshape_alias_copy"},
               reshape_op());
  OpRule as_dtype = factor_op(view_dtype_rule);
  as_dtype.local = dense_last_dim;
  for (const char* op : {"aten::view.dtype", "aten::view_copy.dtype"}) registry.add(op, as_dtype);
  const DimMovement table[] = {
      {{"aten::permute", "aten::permute_copy"}, permute},
      {{"aten::transpose.int", "aten::transpose_copy.int"}, transpose},
      {{"aten::t", "aten::t_copy"}, t},
      {{"aten::unsqueeze", "aten::unsqueeze_copy"}, unsqueeze},
      {{"aten::squeeze", "aten::squeeze_copy"}, squeeze, Passing::kAll, squeeze_local},
      {{"aten::expand", "aten::expand_copy"}, expand, Passing::kAll, with_local_sizes("size")},
      {{"aten::repeat"}, repeat},
      {{"aten::view_as_real", "aten::view_as_real_copy"}, view_as_real, Passing::kLinear, resolve_conj_first},
      {{"aten::view_as_complex", "aten::view_as_complex_copy"}, view_as_complex, Passing::kLinear, dense_last_dim},
  };
  for (const DimMovement& m : table) {
    OpRule rule = factor_op(
        [dims = m.dims, passing = m.passing](const OpCall& call) { return movement(call, dims(call), 1, passing); });
    rule.local = m.local;
    rule.local_calls_operator = m.dims == expand;
    registry.add(m.ops, rule);
  }
  OpRule shuffle = factor_op([](const OpCall& call) { return movement(call, channel_shuffle(call)); });
  shuffle.metas = channel_shuffle_metas;
  shuffle.local = channel_shuffle_local;
  for (const char* op : {"aten::native_channel_shuffle", "aten::channel_shuffle"}) registry.add(op, shuffle);
});

}  // namespace dtensor::internal
