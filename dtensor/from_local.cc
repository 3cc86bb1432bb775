#include "dtensor/from_local.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "comm/group.h"
#include "dtensor/dispatch/local_parts.h"
#include "dtensor/redistribution/internal/check_parts.h"
#include "dtensor/redistribution/internal/plain_gradients.h"
#include "dtensor/redistribution/internal/redistribute_arguments.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/memory_overlap.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/views/copied_view.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// Equal up to the rounding of sums in another order.
bool nearly_equal(const at::Tensor& a, const at::Tensor& b) {
  const auto real = c10::toRealValueType(a.scalar_type());
  const double tolerance = real == at::kBFloat16 ? 0.1 : c10::elementSize(real) <= 2 ? 0.02 : 1e-3;
  const double largest = a.numel() == 0 ? 0 : a.abs().max().item().toDouble();
  return at::allclose(a, b.to(a.device()), tolerance, std::isfinite(largest) ? tolerance * largest : 0,
                      /*equal_nan=*/true);
}

// Replicas must give the same gradient; otherwise it is the gradient of no tensor with these values.
void check_replicas(const Spec& spec, const variable_list& grads) {
  const DeviceMesh& mesh = spec.mesh();
  const auto& ranks = mesh.local_ranks();
  LocalGuard guard;
  for (int64_t m = 0; m < mesh.ndim(); ++m) {
    if (!spec.placements()[m].is_replicate()) continue;
    const RankGroups& group = mesh.get_group(m);
    std::vector<std::optional<size_t>> first(group.members.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      auto& other = first[group.group_of[ranks[i]]];
      if (!other) other = i;
      const at::Tensor &a = grads[*other], &b = grads[i];
      const bool same = a.defined() == b.defined() && (!a.defined() || i == *other || nearly_equal(a, b));
      TORCH_CHECK(
          same, "[to_local] backward: mesh dim '", mesh.names()[m], "' is Replicate, so the parts of ranks ",
          ranks[*other], " and ", ranks[i], " are the same values and must get the same gradient, but ",
          a.defined() != b.defined()
              ? c10::str("that of rank ", a.defined() ? ranks[i] : ranks[*other], " was not used")
              : std::string("they differ"),
          ". Use the parts of all ranks alike, or pass grad_placements with Partial() there: then the gradients of the "
          "ranks are added up.");
    }
  }
}

// from_local(); `fresh`: the parts share memory with nothing.
at::Tensor from_parts(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options, bool fresh);

struct ToLocalFn : Function<ToLocalFn> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& t, Placements grad_placements) {
    save_for_backward(ctx, SavedLayout{spec_of(t), std::move(grad_placements)});
    ctx->set_materialize_grads(false);  // to know which parts were used
    LocalGuard guard;
    variable_list locals;
    for (const auto& local : read_parts(t, "to_local")) locals.push_back(local.detach());
    return locals;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = saved_for_backward<SavedLayout>(ctx);
    const auto expected = s.spec->with_placements(s.placements);
    make_plain(grads, s.spec->mesh(), "to_local");
    check_replicas(*expected, grads);
    for (size_t i = 0; i < grads.size(); ++i) {
      if (grads[i].defined()) {  // autograd passes one tensor to several inputs with the same gradient
        grads[i] = grads[i].clone();
        continue;
      }
      const LocalGuard guard;  // a MeshScope would distribute the zeros
      const Shape shape = expected->local_shape(static_cast<int64_t>(i));
      const auto& mesh = s.spec->mesh();
      grads[i] =
          at::zeros(c10::IntArrayRef(shape.data(), shape.size()),
                    at::TensorOptions().dtype(s.spec->dtype()).device(mesh.world().device(mesh.local_ranks()[i])));
    }
    FromLocalOptions options;
    options.shape.emplace(s.spec->sizes().begin(), s.spec->sizes().end());
    return {from_parts(grads, s.spec->mesh(), s.placements, options, /*fresh=*/true), at::Tensor()};
  }
};

struct FromLocalFn : Function<FromLocalFn> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList locals, SpecPtr spec, Placements grad_placements,
                            bool fresh) {
    save_for_backward(ctx, SavedLayout{spec, std::move(grad_placements)});
    LocalGuard guard;
    // Ranks must not share memory: an in-place operator would be applied to it several times.
    const std::vector<bool> shared = fresh ? std::vector<bool>(locals.size()) : which_overlap(locals);
    RankTensors mine;
    for (size_t i = 0; i < locals.size(); ++i) mine.push_back(shared[i] ? locals[i].clone() : locals[i].detach());
    at::Tensor result = fresh ? make_dtensor(spec, std::move(mine)) : make_alias(spec, std::move(mine));
    meta_without_sync(result).storage->user_may_write = true;
    return result;
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto s = saved_for_backward<SavedLayout>(ctx);
    const size_t n = s.spec->mesh().local_ranks().size();
    variable_list result(n + 3);
    if (!grads[0].defined()) return result;
    const at::Tensor g = distributed_gradient(grads[0], s.spec->mesh());
    auto locals = to_local(redistribute_as(g, s.placements, explicit_cause("from_local")));
    double share = 1;  // an average weighs every addend by 1 / n
    for (int64_t m = 0; m < s.spec->mesh().ndim(); ++m) {
      const Placement& p = s.spec->placements()[m];
      if (p.is_partial() && p.reduce_op() == ReduceOp::kAvg) share /= static_cast<double>(s.spec->mesh().size(m));
    }
    if (share != 1) {
      for (auto& local : locals) local = local * share;
    }
    std::move(locals.begin(), locals.end(), result.begin());
    return result;
  }
};

// Global shape of local tensors that follow the chunk rule. Other processes' parts are not available: assumed to be as
// large.
Shape infer_shape(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements) {
  std::vector<Shape> sizes;
  const bool all_here = locals.size() == mesh.ranks().size();
  const size_t count = all_here ? locals.size() / mesh.num_copies() : 1;
  for (size_t i = 0; i < count; ++i) sizes.emplace_back(locals[i].sizes().begin(), locals[i].sizes().end());
  if (all_here) return add_up(sizes, absl::MakeConstSpan(mesh.local_ranks()).first(count), mesh, placements);
  return scaled_up(sizes[0], mesh, placements);
}

// Global strides: the dims have the memory order of the parts, if all parts agree; else row-major. If dims of size 1
// leave several orders possible, their strides or another part may decide. Other processes' parts are not available,
// and all processes must get the same: then row-major.
Shape common_strides(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Shape& shape) {
  const Shape row_major = row_major_strides(c10::IntArrayRef(shape.data(), shape.size()));
  if (locals.size() != mesh.ranks().size()) return row_major;
  const auto fit_all = [&](c10::IntArrayRef global) {
    return std::all_of(locals.begin(), locals.end(),
                       [&](const at::Tensor& t) { return has_strides(t, dense_in_order_of(global, t.sizes())); });
  };
  const bool as_made = std::all_of(locals.begin(), locals.end(), [](const at::Tensor& t) {
    const Shape strides = row_major_strides(t.sizes());
    return t.strides() == c10::IntArrayRef(strides.data(), strides.size());
  });
  if (as_made) return row_major;
  for (const at::Tensor& candidate : locals) {
    const auto global = dense_in_order_of(candidate.strides(), shape);
    if (candidate.numel() > 0 && fit_all(global)) return Shape(global.begin(), global.end());
  }
  return row_major;
}

// Among the ranks of this process; FromLocalOptions::run_check compares the others.
void check_alike(const std::vector<at::Tensor>& locals, const std::vector<int64_t>& ranks) {
  for (size_t i = 1; i < locals.size(); ++i) {
    TORCH_CHECK_VALUE(locals[i].scalar_type() == locals[0].scalar_type(),
                      "[from_local] local tensors must have one dtype: ", "rank ", ranks[0], " has ",
                      locals[0].scalar_type(), ", rank ", ranks[i], " has ", locals[i].scalar_type());
    TORCH_CHECK_VALUE(locals[i].is_meta() == locals[0].is_meta(), "[from_local] rank ",
                      ranks[locals[i].is_meta() ? i : 0], " has a local tensor on the device \"meta\", rank ",
                      ranks[locals[i].is_meta() ? 0 : i], " one with data: all must have data, or none");
    TORCH_CHECK_VALUE(locals[i].dim() == locals[0].dim(), "[from_local] local tensors must have as many dims: rank ",
                      ranks[0], " has ", locals[0].sizes(), ", rank ", ranks[i], " has ", locals[i].sizes());
  }
}

// With run_check. Faults of this process's parts are sent to the others before they are thrown.
Shape agreed_shape(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                   const FromLocalOptions& options) {
  std::string error;
  for (size_t i = 0; i < locals.size() && error.empty(); ++i)
    error = error_of_part(locals[i], mesh.local_ranks()[i], mesh);
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

at::Tensor from_parts(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options, bool fresh) {
  TORCH_CHECK_VALUE(mesh.defined(), "[from_local] no mesh");
  const auto& ranks = mesh.local_ranks();
  TORCH_CHECK_VALUE(locals.size() == ranks.size(), "[from_local] ", locals.size(),
                    " local tensors, but this process owns ", ranks.size(), " ranks of ", mesh.to_string(),
                    ": give one per rank of mesh.local_ranks()");
  TORCH_CHECK_VALUE(!locals.empty() || options.shape,
                    "[from_local] no local tensors: in an abstract world pass the global shape");
  std::optional<Shape> shape;
  if (options.run_check && !locals.empty()) shape = agreed_shape(locals, mesh, placements, options);
  for (size_t i = 0; i < locals.size(); ++i) {
    const std::string error = error_of_part(locals[i], ranks[i], mesh);
    TORCH_CHECK_TYPE(error.empty(), "[from_local] ", error);
  }
  check_alike(locals, ranks);
  const int64_t ndim = options.shape ? static_cast<int64_t>(options.shape->size()) : locals[0].dim();
  const auto normal = checked_placements(placements, mesh, ndim, "from_local");
  if (!shape)
    shape = options.shape ? Shape(options.shape->begin(), options.shape->end()) : infer_shape(locals, mesh, normal);
  const auto dtype = locals.empty() ? c10::ScalarType::Float : locals[0].scalar_type();
  Shape strides = common_strides(locals, mesh, *shape);
  if (options.strides) strides.assign(options.strides->begin(), options.strides->end());
  TORCH_CHECK_VALUE(strides.size() == shape->size(), "[from_local] ", strides.size(), " strides for a tensor of ",
                    shape->size(), " dims");
  const SpecPtr spec = Spec::get(mesh, normal, TensorMeta{*shape, strides, dtype});
  for (size_t i = 0; i < locals.size(); ++i) {
    const Shape expected = spec->local_shape(static_cast<int64_t>(i));
    TORCH_CHECK_VALUE(locals[i].sizes() == c10::IntArrayRef(expected.data(), expected.size()), "[from_local] ",
                      spec->to_string(), " puts a part of shape ", c10::IntArrayRef(expected.data(), expected.size()),
                      " on rank ", ranks[i], " by the chunk rule, but its local tensor has shape ", locals[i].sizes());
  }
  for (const Placement& p : normal) {
    const bool sum_like = !p.is_partial() || is_linear(p.reduce_op());
    for (const auto& t : locals) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          sum_like || !t.requires_grad() || !at::GradMode::is_enabled(), "[from_local] ", to_string(p),
          " of locals that require grad: the gradient goes to the rank that holds the extreme, which is not "
          "known here; reduce them first");
    }
  }
  Placements back = without_partials(normal);
  if (options.grad_placements) back = checked_placements(*options.grad_placements, mesh, ndim, "from_local");
  if (!locals.empty() && locals[0].is_meta()) {
    at::Tensor result = make_dtensor(Spec::get(mesh.meta(), normal, spec->meta()), {});
    result.set_requires_grad(locals[0].requires_grad());
    return result;
  }
  return FromLocalFn::apply(at::TensorList(locals), spec, std::move(back),
                            fresh);  // autograd only sees tensors in a TensorList
}

// Meta tensors with the shapes of this process's parts.
std::vector<at::Tensor> parts_on_meta(const Spec& spec) {
  const SpecPtr with_data = Spec::get(spec.mesh().with_data(), spec.placements(), spec.meta());
  const LocalGuard guard;
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < with_data->mesh().local_ranks().size(); ++i) {
    const Shape sizes = with_data->local_shape(static_cast<int64_t>(i));
    parts.push_back(at::empty_strided(c10::IntArrayRef(sizes.data(), sizes.size()),
                                      dense_in_order_of(spec.strides(), sizes),
                                      at::TensorOptions(at::kMeta).dtype(spec.dtype())));
  }
  return parts;
}

}  // namespace

std::vector<at::Tensor> to_local(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const DTensorMeta& meta = checked_layout(tensor, "to_local");
  Placements back = without_partials(meta.spec->placements());
  if (grad_placements) back = checked_placements(*grad_placements, meta.spec->mesh(), tensor.dim(), "to_local");
  if (meta.spec->mesh().world().is_meta()) return parts_on_meta(*meta.spec);
  if (meta.locals.empty()) return {};
  return ToLocalFn::apply(tensor, std::move(back));
}

void fetch_parts(const at::Tensor& tensor) {
  checked_layout(tensor, "fetch_parts");
  meta_for_read(tensor);
}

std::vector<at::Tensor> mutable_local_tensors(const at::Tensor& tensor) {
  const DTensorMeta& meta = checked_layout(tensor, "mutable_local_tensors");
  const ViewOrigin* origin = origin_of(*meta.storage);
  TORCH_CHECK_VALUE(origin == nullptr, "[mutable_local_tensors] ", meta.spec->to_string(), " is a view whose parts ",
                    origin->moved ? "had to be copied from other ranks"
                                  : "this process had to copy, because of the strides of the parts of its base",
                    ": writing to them would not reach the tensor that it is a view of. Write to the view with an "
                    "operator, or to the parts of that tensor.");
  allow_user_writes(tensor);
  return meta.locals;
}

at::Tensor from_local(const std::vector<at::Tensor>& locals, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options) {
  return from_parts(locals, mesh, placements, options, /*fresh=*/false);
}

}  // namespace dtensor
