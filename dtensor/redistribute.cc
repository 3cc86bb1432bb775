#include "dtensor/redistribute.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

#include "dtensor/ghost_width.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/redistribution/internal/redistribute_arguments.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/module_traits.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
using namespace internal;

namespace {

void check_options(const RedistributeOptions& options, const char* function) {
  TORCH_CHECK_VALUE(options.max_bytes > 0, "[", function, "] max_bytes is ", options.max_bytes,
                    "; give the bytes that a rank may need meanwhile, at least 1");
}

// To any mesh of the tensor's world. Arguments are checked.
at::Tensor redistribute_checked(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                                const RedistributeOptions& options) {
  check_options(options, "redistribute");
  Placements normal = checked_placements(placements, mesh, tensor.dim(), "redistribute");
  CommCause cause = explicit_cause("redistribute");
  cause.module_path = module_of_call(tensor);
  if (mesh == spec_of(tensor)->mesh()) return redistribute_as(tensor, normal, cause, options);
  const Layout to(mesh, std::move(normal));
  return redistribute_as(at::TensorList(&tensor, 1), c10::ArrayRef<Layout>(to), cause, options)[0];
}

// Whether `t` is a copied view, or other tensors share its memory: views, and handles made by detach() or data().
bool has_other_handles(const at::Tensor& t) {
  const auto reference = t.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  const DTensorMeta& meta = meta_without_sync(t);
  return reference.use_count() > 2 || meta.storage.use_count() > 1 || meta.storage->observer;
}

// Error: `t` cannot be laid out as `to` in place.
void check_relayout(const at::Tensor& t, const Placements& to) {
  const DTensorMeta& meta = meta_without_sync(t);
  const std::string tensor =
      c10::str("[relayout_] ", meta.name ? "'" + *meta.name + "', " : "", meta.spec->to_string());
  TORCH_CHECK_VALUE(t.is_leaf(), tensor, ", has autograd history: redistribute() gives a new tensor");
  TORCH_CHECK_VALUE(
      !has_other_handles(t), tensor,
      ", is a view, or has views or other handles, which would keep the old layout. Drop them, relayout it "
      "before its first view is taken, or make it in that layout: zeros(sizes, mesh, placements)");
  const bool to_partial = std::any_of(to.begin(), to.end(), [](const Placement& p) { return p.is_partial(); });
  TORCH_CHECK_VALUE(!to_partial || !is_leaf_parameter(t), tensor,
                    ", requires grad, and its values cannot become addends: use Shard or Replicate");
}

}  // namespace

at::Tensor redistribute(const at::Tensor& tensor, const Placements& placements, const RedistributeOptions& options) {
  return redistribute_checked(tensor, checked_layout(tensor, "redistribute").spec->mesh(), placements, options);
}

at::Tensor redistribute(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                        const RedistributeOptions& options) {
  checked_layout(tensor, "redistribute");
  TORCH_CHECK_VALUE(mesh.defined(), "[redistribute] no mesh");
  return redistribute_checked(tensor, mesh, placements, options);
}

std::vector<at::Tensor> redistribute_many(const std::vector<at::Tensor>& tensors,
                                          const std::vector<Placements>& placements,
                                          const RedistributeOptions& options) {
  check_options(options, "redistribute_many");
  TORCH_CHECK_VALUE(!options.async_op,
                    "[redistribute_many] async_op: what travels together is waited for; "
                    "redistribute() each tensor with async_op, or leave it out");
  TORCH_CHECK_VALUE(placements.size() == tensors.size() || placements.size() == 1, "[redistribute_many] ",
                    placements.size(), " lists of placements for ", tensors.size(),
                    " tensors: give one per tensor, or one for all");
  std::vector<Layout> to;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const DeviceMesh& mesh = checked_layout(tensors[i], "redistribute_many").spec->mesh();
    to.emplace_back(mesh, checked_placements(placements[placements.size() == 1 ? 0 : i], mesh, tensors[i].dim(),
                                             "redistribute_many"));
  }
  return redistribute_as(tensors, to, explicit_cause("redistribute_many"), options);
}

void relayout_(const at::Tensor& tensor, const Placements& placements, const RedistributeOptions& options) {
  const SpecPtr spec = checked_layout(tensor, "relayout_").spec;
  check_options(options, "relayout_");
  TORCH_CHECK_VALUE(!options.async_op, "[relayout_] async_op: the tensor is usable when this returns; leave it out");
  const Placements to = checked_placements(placements, spec->mesh(), tensor.dim(), "relayout_");
  if (spec->placements() != to) {
    check_relayout(tensor, to);
    std::vector<at::Tensor> all{tensor};
    if (const at::Tensor& gradient = tensor.grad(); gradient.defined()) {
      checked_layout(gradient, "relayout_");
      all.push_back(gradient);
    }
    const std::vector<Layout> layouts(all.size(), Layout(spec->mesh(), to));
    const std::vector<at::Tensor> moved =
        redistribute_below_autograd(all, layouts, explicit_cause("relayout_"), options);
    const std::vector<int64_t> width = ghost_width(tensor);
    if (moved.size() > 1) tensor.mutable_grad() = moved[1];
    keep_module_traits(tensor, moved[0]);
    share_contents(tensor, moved[0]);
    set_ghost_width(tensor, width);
  }
  mutable_hints(tensor).laid_out_by_engine = false;  // the user chose the layout
}

RedistributePlan plan_of(const at::Tensor& tensor, const Placements& placements, const RedistributeOptions& options) {
  const SpecPtr& spec = checked_layout(tensor, "plan_of").spec;
  check_options(options, "plan_of");
  return *cached_plan(spec, spec->mesh(), checked_placements(placements, spec->mesh(), tensor.dim(), "plan_of"),
                      limits_of(options));
}

at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const DTensorMeta& meta = checked_layout(tensor, "full_tensor");
  Placements back = without_partials(meta.spec->placements());
  if (grad_placements) back = checked_placements(*grad_placements, meta.spec->mesh(), tensor.dim(), "full_tensor");
  return gather_whole(tensor, back);
}

}  // namespace dtensor
