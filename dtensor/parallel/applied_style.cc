#include "dtensor/parallel/applied_style.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <span>
#include <string_view>
#include <tuple>

#include "absl/container/inlined_vector.h"
#include "dtensor/parallel/overlapped_linear.h"
#include "dtensor/parallel/param_dtype.h"
#include "dtensor/parallel/program_call.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "placement/parse_placements.h"

namespace dtensor::internal {
namespace {

thread_local bool styled_call_runs = false;

bool looks_rows_up(std::string_view op) {
  return op == "aten::embedding" || op == "aten::embedding_bag" || op == "aten::_embedding_bag";
}

const AppliedStyle* style_of(const at::Tensor& t) { return meta_without_sync(t).storage->parameter->style.get(); }

bool belongs_to(const at::Tensor& t, const ModuleStyle& module) {
  const AppliedStyle* style = style_of(t);
  if (style == nullptr) return false;
  const auto is_module = [&](const auto& m) { return m.get() == &module; };
  return std::any_of(style->modules().begin(), style->modules().end(), is_module);
}

using ModuleStyles = std::vector<std::shared_ptr<ModuleStyle>>;

// Whether a parameter of the call belongs to both.
bool share_parameter(const ModuleStyle& a, const ModuleStyle& b, c10::ArrayRef<c10::IValue> args) {
  bool shared = false;
  for_each_dtensor(args, [&](const at::Tensor& t) { shared = shared || (belongs_to(t, a) && belongs_to(t, b)); });
  return shared;
}

bool is_own_tensor(const at::Tensor& t, const ModuleStyle& module) {
  return std::find(module.tensors.begin(), module.tensors.end(), t.unsafeGetTensorImpl()) != module.tensors.end();
}

// Whether operators other than lookups, or lookups, follow `module` among the styles of a parameter: a table's style
// governs lookups, and these only.
bool governs(const ModuleStyle& module, const AppliedStyle& style, bool lookup) {
  const auto is_table = [](const auto& m) { return m->is_table; };
  const bool has_table = std::any_of(style.modules().begin(), style.modules().end(), is_table);
  return !has_table || module.is_table == lookup;
}

// The style that the call follows: one that was given before one that only observes, then the one with most parameters
// in the call, then the one with most of the tensors themselves, which tied modules may each have. After it those of
// modules that share its parameters and cannot be distinguished from it.
ModuleStyles styles_of_call(std::string_view op, c10::ArrayRef<c10::IValue> args) {
  struct Candidate {
    std::shared_ptr<ModuleStyle> module;
    std::tuple<bool, int64_t, int64_t> rank;  // whether it was given; parameters in the call; of them its own tensors
  };
  absl::InlinedVector<Candidate, 4> candidates;
  for_each_dtensor(args, [&](const at::Tensor& t) {
    const AppliedStyle* style = style_of(t);
    if (style == nullptr) return;
    for (const auto& module : style->modules()) {
      if (!governs(*module, *style, looks_rows_up(op))) continue;
      const auto same = [&](const Candidate& c) { return c.module == module; };
      auto it = std::find_if(candidates.begin(), candidates.end(), same);
      if (it == candidates.end()) it = candidates.insert(it, {module, {module->given(), 0, 0}});
      ++std::get<1>(it->rank);
      if (is_own_tensor(t, *module)) ++std::get<2>(it->rank);
    }
  });
  if (candidates.empty()) return {};
  const Candidate& best = *std::max_element(candidates.begin(), candidates.end(),
                                            [](const Candidate& a, const Candidate& b) { return a.rank < b.rank; });
  ModuleStyles styles{best.module};
  for (const Candidate& c : candidates) {
    if (&c == &best || c.rank != best.rank) continue;
    if (share_parameter(*c.module, *best.module, args)) styles.push_back(c.module);
  }
  return styles;
}

}  // namespace

ModuleStyle::Seen ModuleStyle::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

void ModuleStyle::record(const SpecPtr& in, const at::Tensor& out) {
  const std::lock_guard lock(mutex_);
  seen_.input = in;
  seen_.output = spec_of(out);
  ++seen_.calls;
  seen_.since_check = true;
  last_result_ = meta_without_sync(out).storage;
}

bool ModuleStyle::is_last_result(const at::Tensor& t) const {
  const std::lock_guard lock(mutex_);
  const auto& memory = meta_without_sync(t).storage;
  return memory && !last_result_.owner_before(memory) && !memory.owner_before(last_result_);
}

void ModuleStyle::begin_check() {
  const std::lock_guard lock(mutex_);
  seen_.since_check = false;
}

StyledCall::StyledCall(const c10::OperatorHandle& op, bool is_view, torch::jit::Stack& stack) : op_(op) {
  if (styled_call_runs || !is_programs_call()) return;
  const size_t count = op.schema().arguments().size();
  const std::span<c10::IValue> args(stack.data() + stack.size() - count, count);
  ModuleStyles styles = styles_of_call(op.schema().name(), torch::jit::last(stack, count));
  if (styles.empty() || !computes(op, is_view) || updates_one_shape(op, torch::jit::last(stack, count))) return;
  const ModuleStyle* const style = styles.front().get();
  at::Tensor parameter;
  for_each_dtensor(torch::jit::last(stack, count), [&](const at::Tensor& t) {
    const bool own = belongs_to(t, *style);
    if (own && !parameter.defined()) parameter = t;
    if (!own && t.dim() > 0 && !input_.defined()) input_ = t;
  });
  if (!input_.defined()) return;
  const DeviceMesh &theirs = spec_of(input_)->mesh(), &ours = spec_of(parameter)->mesh();
  TORCH_CHECK_VALUE(!style->given() || theirs == ours, "[", style->name(), "] the input of ", op.schema().name(), ", ",
                    spec_of(input_)->to_string(), ", is on another mesh than the parameters, ", ours.to_string(),
                    ": redistribute(input, mesh, placements) first");
  if (style->given() && ours != style->mesh && ours.with_data() != style->mesh) return;  // its dims mean others
  styles_ = std::move(styles);
  const at::Tensor given = input_;
  const bool goes_on = op.hasTag(at::Tag::pointwise) && style->is_last_result(given);  // matmul(x, w.t()) + b
  if (!goes_on && style->given()) result_ = run_in_chunks(given, torch::jit::last(stack, count));
  if (!goes_on && !has_run()) input_ = moved(given, style->input, "input");
  input_layout_ = spec_of(input_);
  if (has_run() && style->input) input_layout_ = input_layout_->with_placements(layout(given, *style->input, "input"));
  if (!input_.is_same(given)) replace_tensor(args, given, input_);
  styled_call_runs = true;
}

StyledCall::~StyledCall() {
  if (!styles_.empty()) styled_call_runs = false;
}

void StyledCall::finish(torch::jit::Stack& stack) const {
  if (styles_.empty()) return;
  if (has_run()) {
    torch::jit::drop(stack, op_.schema().arguments().size());
    stack.emplace_back(result_);
  }
  c10::IValue& result = stack[stack.size() - op_.schema().returns().size()];
  if (!result.isTensor() || !is_dtensor(result.toTensor())) return;
  const at::Tensor out = moved(result.toTensor(), styles_.front()->output, "output");
  for (const auto& style : styles_) style->record(input_layout_, out);
  result = out;
}

Placements StyledCall::layout(const at::Tensor& t, const Placement& to, const char* what) const {
  const ModuleStyle& style = *styles_.front();
  const auto normal = normalize_placements({to}, t.dim());
  TORCH_CHECK_VALUE(normal.ok(), "[", style.name(), "] the ", what, " of ", op_.schema().name(), " has the shape ",
                    t.sizes(), ", so that it cannot be ", to_string(to), ": give the style another layout, {.", what,
                    " = Shard(dim)}");
  Placements placements = spec_of(t)->placements();
  placements[style.mesh_dim] = normal->front();
  return placements;
}

CommCause StyledCall::cause(const char* what) const {
  const ModuleStyle& style = *styles_.front();
  return {style.style.kind, what, style.path, /*implicit=*/false};
}

at::Tensor StyledCall::moved(const at::Tensor& t, const std::optional<Placement>& to, const char* what) const {
  return to ? redistribute_as(t, layout(t, *to, what), cause(what)) : t;
}

at::Tensor StyledCall::run_in_chunks(const at::Tensor& given, c10::ArrayRef<c10::IValue> args) const {
  if (current_dispatch_scope().communication_chunks < 2) return {};
  if (!linear_call(op_, args, given)) return {};
  torch::jit::Stack in_param_dtype(args.begin(), args.end());
  cast_to_param_dtype(op_, /*is_view=*/false, in_param_dtype);
  const auto is_given = [&](const c10::IValue& v) { return v.isTensor() && v.toTensor().is_same(given); };
  const auto input = std::find_if(args.begin(), args.end(), is_given) - args.begin();
  const auto call = linear_call(op_, in_param_dtype, in_param_dtype[input].toTensor());
  const ModuleStyle& style = *styles_.front();
  LinearMoves moves{style.mesh_dim, {}, {}, cause("input"), cause("output")};
  // Of the result, too, which has as many dims. What does not fit is an error of moved().
  const auto fits = [&](const std::optional<Placement>& to) {
    return !to || check_placements({*to}, given.dim()).ok();
  };
  if (!fits(style.input) || !fits(style.output)) return {};
  if (style.input) moves.input = layout(given, *style.input, "input")[style.mesh_dim];
  if (style.output) moves.output = layout(given, *style.output, "output")[style.mesh_dim];
  return overlapped_linear(*call, moves);
}

}  // namespace dtensor::internal
