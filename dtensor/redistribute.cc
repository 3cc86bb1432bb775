#include "dtensor/redistribute.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "dtensor/check_parts.h"
#include "dtensor/dispatch.h"
#include "dtensor/executor.h"
#include "dtensor/memory_overlap.h"
#include "dtensor/redistribute_internal.h"
#include "mesh/block_copy.h"
#include "mesh/scope.h"
#include "propagation/redistribute_planner.h"

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a backward needs to know; autograd contexts store IValues only.
struct Saved : torch::CustomClassHolder {
  SpecPtr spec;
  Placements placements;
  CommCause cause;
};

void save(AutogradContext* ctx, SpecPtr spec, Placements placements, CommCause cause = {}) {
  auto saved = c10::make_intrusive<Saved>();
  saved->spec = std::move(spec);
  saved->placements = std::move(placements);
  saved->cause = std::move(cause);
  ctx->saved_data["dtensor"] = c10::IValue::make_capsule(saved);
}

c10::intrusive_ptr<Saved> saved(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<Saved>(ctx->saved_data.at("dtensor").toCapsule());
}

Placements all_replicate(const DeviceMesh& mesh) { return Placements(mesh.ndim(), Replicate()); }

struct ReplicateFn : Function<ReplicateFn> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& plain, DeviceMesh mesh) { return replicate_copy(plain, mesh); }
  static variable_list backward(AutogradContext* ctx, variable_list grads);
};

struct RedistributeFn : Function<RedistributeFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, Placements placements, CommCause cause, bool async_op) {
    save(ctx, layout_of(t).spec, without_partials(layout_of(t).spec->placements()), cause);
    return redistribute_below_autograd(t, placements, cause, async_op);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = saved(ctx);
    if (!grads[0].defined()) return variable_list(4);
    const at::Tensor g = distributed_gradient(grads[0], s->spec->mesh());
    return {redistribute_as(g, s->placements, s->cause), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

struct FullTensorFn : Function<FullTensorFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, Placements grad_placements);
  static variable_list backward(AutogradContext* ctx, variable_list grads);
};

at::Tensor FullTensorFn::forward(AutogradContext* ctx, const at::Tensor& t, Placements grad_placements) {
  const DTensorMeta& meta = layout_of(t);
  save(ctx, meta.spec, std::move(grad_placements));
  const at::Tensor whole = redistribute_below_autograd(t, all_replicate(meta.spec->mesh()), explicit_cause("full_tensor"));
  LocalGuard guard;
  const at::Tensor& local = meta_of(whole).locals.front();
  // What is given away must not be a rank's own memory: writing to it would change one replica of several.
  return whole.is_same(t) ? local.clone() : local.detach();
}

variable_list FullTensorFn::backward(AutogradContext* ctx, variable_list grads) {
  const auto s = saved(ctx);
  if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
  const at::Tensor g = distributed_gradient(grads[0], s->spec->mesh());
  return {redistribute_as(g, s->placements, explicit_cause("full_tensor")), at::Tensor()};
}

variable_list ReplicateFn::backward(AutogradContext*, variable_list grads) {
  return {grads[0].defined() && is_dtensor(grads[0]) ? full_tensor(grads[0]) : grads[0], at::Tensor()};
}

// Equal, but for what another order of sums may change.
bool nearly_equal(const at::Tensor& a, const at::Tensor& b) {
  const auto real = c10::toRealValueType(a.scalar_type());
  const double tolerance = real == at::kBFloat16 ? 0.1 : c10::elementSize(real) <= 2 ? 0.02 : 1e-3;
  const double largest = a.numel() == 0 ? 0 : a.abs().max().item().toDouble();
  return at::allclose(a, b.to(a.device()), tolerance, std::isfinite(largest) ? tolerance * largest : 0, /*equal_nan=*/true);
}

// Ranks that hold the same values must give the same gradient, or it is that of no tensor with these values.
void check_replicas(const Spec& spec, const variable_list& grads) {
  const DeviceMesh& mesh = spec.mesh();
  const auto& ranks = mesh.local_ranks();
  LocalGuard guard;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (!spec.placements()[m].is_replicate()) continue;
    const Group& group = mesh.get_group(m);
    std::vector<std::optional<size_t>> first(group.members.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      auto& other = first[group.group_of[ranks[i]]];
      if (!other) other = i;
      const at::Tensor &a = grads[*other], &b = grads[i];
      const bool same = a.defined() == b.defined() && (!a.defined() || i == *other || nearly_equal(a, b));
      TORCH_CHECK(same, "[to_local] backward: mesh dim '", mesh.names()[m], "' is Replicate, so the parts of ranks ", ranks[*other],
                  " and ", ranks[i], " are the same values and must get the same gradient, but ",
                  a.defined() != b.defined() ? c10::str("that of rank ", a.defined() ? ranks[i] : ranks[*other], " was not used")
                                             : std::string("they differ"),
                  ". Use the parts of all ranks alike, or pass grad_placements with Partial() there: then the gradients of the "
                  "ranks are added up.");
    }
  }
}

// from_local(); `fresh`: the caller knows that the parts share memory with nothing.
at::Tensor from_parts(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options, bool fresh);

struct ToLocalFn : Function<ToLocalFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& t, Placements grad_placements) {
    const DTensorMeta& meta = meta_of(t);
    save(ctx, meta.spec, std::move(grad_placements));
    ctx->set_materialize_grads(false);  // which parts were used matters
    LocalGuard guard;
    variable_list locals;
    meta.storage->given_away = true;
    for (const auto& local : meta.locals) locals.push_back(local.detach());
    return locals;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = saved(ctx);
    const auto expected = s->spec->with_placements(s->placements);
    check_replicas(*expected, grads);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) {  // autograd hands one tensor to all that it is the gradient of
        grads[i] = grads[i].clone();
        continue;
      }
      const Shape shape = expected->local_shape(static_cast<int64_t>(i));
      const auto& mesh = s->spec->mesh();
      grads[i] = at::zeros(c10::IntArrayRef(shape.data(), shape.size()),
                           at::TensorOptions().dtype(s->spec->dtype()).device(mesh.world().device(mesh.local_ranks()[i])));
    }
    FromLocalOptions options;
    options.shape.emplace(s->spec->sizes().begin(), s->spec->sizes().end());
    return {from_parts(grads, s->spec->mesh(), s->placements, options, /*fresh=*/true), at::Tensor()};
  }
};

struct FromLocalFn : Function<FromLocalFn> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList locals, SpecPtr spec, Placements grad_placements, bool fresh) {
    save(ctx, spec, std::move(grad_placements));
    LocalGuard guard;
    // Ranks do not share memory: an operator in place would work on it several times.
    const std::vector<bool> shared = fresh ? std::vector<bool>(locals.size()) : which_overlap(locals);
    RankTensors mine;
    for (size_t i = 0; i < locals.size(); ++i) mine.push_back(shared[i] ? locals[i].clone() : locals[i].detach());
    at::Tensor result = make_dtensor(spec, std::move(mine));
    layout_of(result).storage->given_away = true;
    return result;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = saved(ctx);
    const size_t n = s->spec->mesh().local_ranks().size();
    variable_list result(n + 3);
    if (!grads[0].defined()) return result;
    const at::Tensor g = distributed_gradient(grads[0], s->spec->mesh());
    auto locals = to_local(redistribute_as(g, s->placements, explicit_cause("from_local")));
    double share = 1;  // an average takes 1 / n of every addend
    for (int64_t m = 0; m < s->spec->mesh().ndim(); ++m) {
      const Placement& p = s->spec->placements()[m];
      if (p.is_partial() && p.reduce_op() == ReduceOp::kAvg) share /= static_cast<double>(s->spec->mesh().size(m));
    }
    if (share != 1) {
      for (auto& local : locals) local = local * share;
    }
    std::move(locals.begin(), locals.end(), result.begin());
    return result;
  }
};

// From layout `before`, Replicate on mesh dim m, to `after`, which cuts it there or not. Every rank's part comes from the rank at
// position `source` of its group along m; nullopt: is cut out of its own tensor.
RankTensors spread(const Spec& spec, const RankTensors& locals, const Placements& before, const Placements& after, int64_t m,
                   std::optional<int64_t> source, const CommCause& cause) {
  const DeviceMesh& mesh = spec.mesh();
  CommCall call;
  call.group = &mesh.get_group(m);
  call.ranks = mesh.local_ranks();
  call.event.cause = cause;
  call.event.dtype = spec.dtype();
  call.event.bytes = spec.with_placements(after)->max_local_bytes();
  const RankSlots owned(call);
  const auto part = [&](const Placements& placements, int64_t rank) {
    return local_layout(spec.sizes(), mesh.shape(), placements, mesh.coordinate(rank));
  };
  RankPieces inputs, outputs;
  std::vector<Message> messages;
  const auto add = [&](int64_t sender, int64_t receiver) {
    for (Block& block : overlap(part(before, sender), part(after, receiver))) {
      messages.push_back({sender, receiver, 0, 0, std::move(block)});
    }
  };
  for (size_t i = 0; i < locals.size(); ++i) {
    const int64_t rank = call.ranks[i];
    const Shape sizes = part(after, rank).sizes();
    inputs.push_back({locals[i]});
    outputs.push_back({at::empty(c10::IntArrayRef(sizes.data(), sizes.size()), locals[i].options())});
    const auto& members = call.group->members[call.group->group_of[rank]];
    const int64_t sender = source ? members[*source] : rank;
    add(sender, rank);
    for (int64_t member : members) {
      if (sender == rank && source && owned[member] < 0) add(rank, member);
    }
  }
  if (source) {
    std::stable_sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
      return std::tie(a.sender, a.receiver) < std::tie(b.sender, b.receiver);
    });
    const auto collective = after[m].is_sharded() ? Collective::kScatter : Collective::kBroadcast;
    mesh.world().communicator().exchange(call, collective, messages, inputs, outputs);
  } else {
    for (const Message& message : messages) {
      const int64_t i = owned[message.sender];
      copy_block(inputs[i][0], outputs[i][0], message.block);
    }
  }
  RankTensors parts;
  for (auto& output : outputs) parts.push_back(std::move(output[0]));
  return parts;
}

// Global shape of locals that follow the chunk rule. Other processes' parts are out of sight: they are taken to be as large.
Shape infer_shape(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements) {
  std::vector<Shape> sizes;
  const bool all_here = locals.size() == mesh.ranks().size();
  const size_t count = all_here ? locals.size() / mesh.num_copies() : 1;
  for (size_t i = 0; i < count; ++i) sizes.emplace_back(locals[i].sizes().begin(), locals[i].sizes().end());
  if (all_here) return add_up(sizes, absl::MakeConstSpan(mesh.local_ranks()).first(count), mesh, placements);
  return scaled_up(sizes[0], mesh, placements);
}

// Between the ranks of this process; FromLocalOptions::run_check is for the others.
void check_alike(const std::vector<at::Tensor>& locals, const std::vector<int64_t>& ranks) {
  for (size_t i = 1; i < locals.size(); ++i) {
    TORCH_CHECK_VALUE(locals[i].scalar_type() == locals[0].scalar_type(), "[from_local] local tensors must have one dtype: ",
                      "rank ", ranks[0], " has ", locals[0].scalar_type(), ", rank ", ranks[i], " has ", locals[i].scalar_type());
    TORCH_CHECK_VALUE(locals[i].dim() == locals[0].dim(), "[from_local] local tensors must have as many dims: rank ", ranks[0],
                      " has ", locals[0].sizes(), ", rank ", ranks[i], " has ", locals[i].sizes());
  }
}

// By run_check. What is wrong with this process's parts is told to the others before it is thrown.
Shape agreed_shape(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                   const FromLocalOptions& options) {
  std::string error;
  for (size_t i = 0; i < locals.size() && error.empty(); ++i) error = what_ails_part(locals[i], mesh.local_ranks()[i], mesh);
  Placements normal;
  if (error.empty()) {
    const int64_t ndim = options.shape ? static_cast<int64_t>(options.shape->size()) : locals[0].dim();
    auto fitting = fitting_placements(placements, mesh, ndim);
    if (fitting.ok()) {
      normal = *std::move(fitting);
    } else {
      const std::string text(fitting.status().message());
      TORCH_CHECK_VALUE(mesh.world().kind() == World::Kind::kProcesses, "[from_local] ", text);
      error = absl::StrCat("on rank ", mesh.local_ranks()[0], ": ", text);
    }
  }
  return check_parts({locals, normal, options.shape, std::move(error)}, mesh);
}

}  // namespace

at::Tensor distributed_gradient(const at::Tensor& gradient, const DeviceMesh& mesh) {
  return is_dtensor(gradient) ? gradient : ReplicateFn::apply(gradient, mesh);
}

CommCause explicit_cause(std::string op) { return {std::move(op), "", current_scope().module_path, /*implicit=*/false}; }

const DTensorMeta& checked_layout(const at::Tensor& t, const char* function) {
  TORCH_CHECK_TYPE(is_dtensor(t), "[", function, "] the tensor", (t.defined() ? c10::str(" of shape ", t.sizes()) : std::string()),
                   " is not distributed; distribute_tensor(t, mesh, placements) makes it so");
  return layout_of(t);
}

absl::StatusOr<Placements> fitting_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim) {
  if (static_cast<int64_t>(placements.size()) == mesh.ndim()) return normalize_placements(placements, ndim);
  return absl::InvalidArgumentError(absl::StrCat("`placements` ", to_string(placements), " has ", placements.size(),
                                                 " entries, but ", mesh.to_string(), " has ", mesh.ndim(),
                                                 " dims: give one placement per mesh dim"));
}

Placements checked_placements(const Placements& placements, const DeviceMesh& mesh, int64_t ndim, const char* function) {
  auto normal = fitting_placements(placements, mesh, ndim);
  TORCH_CHECK_VALUE(normal.ok(), "[", function, "] ", std::string(normal.status().message()));
  return *std::move(normal);
}

at::Tensor redistribute_as(const at::Tensor& tensor, const Placements& placements, const CommCause& cause, bool async_op) {
  if (layout_of(tensor).spec->placements() == placements) return tensor;
  if (!at::GradMode::is_enabled() || !tensor.requires_grad()) {
    return redistribute_below_autograd(tensor, placements, cause, async_op);
  }
  return RedistributeFn::apply(tensor, placements, cause, async_op);
}

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements, bool async_op) {
  const DTensorMeta& meta = checked_layout(tensor, "redistribute");
  const auto to = checked_placements(placements, meta.spec->mesh(), tensor.dim(), "redistribute");
  return redistribute_as(tensor, to, explicit_cause("redistribute"), async_op);
}

RedistributePlan plan_of(const at::Tensor& tensor, const Placements& placements) {
  const DTensorMeta& meta = checked_layout(tensor, "plan_of");
  return *cached_plan(meta.spec, checked_placements(placements, meta.spec->mesh(), tensor.dim(), "plan_of"));
}

at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const DTensorMeta& meta = checked_layout(tensor, "full_tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(!meta.locals.empty(), "[full_tensor] ", meta.spec->to_string(),
                              " has no data in this process: its world is ", meta.spec->mesh().world().name());
  Placements back = without_partials(meta.spec->placements());
  if (grad_placements) back = checked_placements(*grad_placements, meta.spec->mesh(), tensor.dim(), "full_tensor");
  return FullTensorFn::apply(tensor, std::move(back));
}

std::vector<at::Tensor> to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const DTensorMeta& meta = checked_layout(tensor, "to_local");
  Placements back = without_partials(meta.spec->placements());
  if (grad_placements) back = checked_placements(*grad_placements, meta.spec->mesh(), tensor.dim(), "to_local");
  if (meta.locals.empty()) return {};
  return ToLocalFn::apply(tensor, std::move(back));
}

at::Tensor from_local(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options) {
  return from_parts(locals, mesh, placements, options, /*fresh=*/false);
}

namespace {

at::Tensor from_parts(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options, bool fresh) {
  TORCH_CHECK_VALUE(mesh.defined(), "[from_local] no mesh");
  const auto& ranks = mesh.local_ranks();
  TORCH_CHECK_VALUE(locals.size() == ranks.size(), "[from_local] ", locals.size(), " local tensors, but this process owns ",
                    ranks.size(), " ranks of ", mesh.to_string(), ": give one per rank of mesh.local_ranks()");
  TORCH_CHECK_VALUE(!locals.empty() || options.shape, "[from_local] no local tensors: in an abstract world pass the global shape");
  std::optional<Shape> shape;
  if (options.run_check && !locals.empty()) shape = agreed_shape(locals, mesh, placements, options);
  for (size_t i = 0; i < locals.size(); ++i) {
    const std::string error = what_ails_part(locals[i], ranks[i], mesh);
    TORCH_CHECK_TYPE(error.empty(), "[from_local] ", error);
  }
  check_alike(locals, ranks);
  const int64_t ndim = options.shape ? static_cast<int64_t>(options.shape->size()) : locals[0].dim();
  const auto normal = checked_placements(placements, mesh, ndim, "from_local");
  if (!shape) shape = options.shape ? Shape(options.shape->begin(), options.shape->end()) : infer_shape(locals, mesh, normal);
  const auto dtype = locals.empty() ? c10::ScalarType::Float : locals[0].scalar_type();
  const SpecPtr spec = Spec::get(mesh, normal, *shape, dtype);
  for (size_t i = 0; i < locals.size(); ++i) {
    const Shape expected = spec->local_shape(static_cast<int64_t>(i));
    TORCH_CHECK_VALUE(locals[i].sizes() == c10::IntArrayRef(expected.data(), expected.size()), "[from_local] ", spec->to_string(),
                      " puts a part of shape ", c10::IntArrayRef(expected.data(), expected.size()), " on rank ", ranks[i],
                      " by the chunk rule, but its local tensor has shape ", locals[i].sizes());
  }
  for (const Placement& p : normal) {
    const bool sum_like = !p.is_partial() || p.reduce_op() == ReduceOp::kSum || p.reduce_op() == ReduceOp::kAvg;
    for (const auto& t : locals) {
      TORCH_CHECK_NOT_IMPLEMENTED(sum_like || !t.requires_grad() || !at::GradMode::is_enabled(), "[from_local] ", to_string(p),
                                  " of locals that require grad: the gradient goes to the rank that holds the extreme, which is not "
                                  "known here; reduce them first");
    }
  }
  Placements back = without_partials(normal);
  if (options.grad_placements) back = checked_placements(*options.grad_placements, mesh, ndim, "from_local");
  return FromLocalFn::apply(at::TensorList(locals), spec, std::move(back), fresh);  // autograd looks into a TensorList only
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                             std::optional<int64_t> source_rank) {
  TORCH_CHECK_VALUE(mesh.defined(), "[distribute_tensor] no mesh");
  TORCH_CHECK(tensor.defined(), "[distribute_tensor] the tensor is undefined");
  const auto to = checked_placements(placements.empty() ? all_replicate(mesh) : placements, mesh, tensor.dim(), "distribute_tensor");
  if (is_dtensor(tensor)) {
    const Spec& spec = *layout_of(tensor).spec;
    if (spec.mesh() == mesh && spec.is_replicated() && tensor.is_leaf()) {  // a factory's, inside a MeshScope
      if (spec.placements() == to) return tensor;
      at::Tensor part = redistribute_below_autograd(tensor, to, explicit_cause("distribute_tensor"));
      part.set_requires_grad(tensor.requires_grad());
      return part;
    }
    TORCH_CHECK_VALUE(spec.mesh() == mesh && spec.placements() == to, "[distribute_tensor] the tensor is distributed already as ",
                      spec.to_string(), ", not as ", to_string(to), " @ ", mesh.to_string(), "; use redistribute");
    return tensor;
  }
  TORCH_CHECK(tensor.is_leaf(), "[distribute_tensor] the tensor of shape ", tensor.sizes(),
              " has autograd history: distribute the leaf, or pass tensor.detach()");
  for (int64_t m = 0; source_rank && m < mesh.ndim(); ++m) {
    TORCH_CHECK_VALUE(*source_rank >= 0 && *source_rank < mesh.size(m), "[distribute_tensor] source_rank ", *source_rank,
                      " is not a position along mesh dim '", mesh.names()[m], "' of size ", mesh.size(m));
  }
  const SpecPtr spec = Spec::get(mesh, to, Shape(tensor.sizes().begin(), tensor.sizes().end()), tensor.scalar_type());
  TORCH_CHECK_VALUE(!tensor.is_meta() || !mesh.world().has_data(), "[distribute_tensor] a meta tensor has no values to spread over ",
                    mesh.world().name(), "; only an abstract world takes it");

  RankTensors locals;
  {
    LocalGuard guard;
    for (int64_t rank : mesh.local_ranks()) locals.push_back(tensor.detach().to(mesh.world().device(rank)));
    Placements done(mesh.ndim(), Replicate());
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const Placements before = done;
      if (to[m].is_sharded()) done[m] = to[m];
      if (!source_rank && done == before) continue;
      locals = spread(*spec, locals, before, done, m, source_rank, explicit_cause("distribute_tensor"));
    }
    // A rank's part must not share memory with the caller's tensor or another rank's.
    if (!source_rank && done == all_replicate(mesh)) {
      for (auto& local : locals) local = local.clone();
    }
    if (spec->has_partial()) {
      const auto plan = plan_redistribution(mesh, spec->meta(), done, to);
      locals = run_plan(plan, std::move(locals), explicit_cause("distribute_tensor"));
    }
  }
  at::Tensor result = make_dtensor(spec, std::move(locals));
  (void)result.has_storage();  // a parameter that becomes it with set_data() then says so where its data is asked for
  result.set_requires_grad(tensor.requires_grad());
  return result;
}

}  // namespace dtensor
