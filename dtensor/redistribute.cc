#include "dtensor/redistribute.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "dtensor/extend/redistribute_as.h"
#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/representation.h"
#include "dtensor/internal/redistribute_arguments.h"
#include "dtensor/internal/saved_layout.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct FullTensorFn : Function<FullTensorFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, Placements grad_placements);
  static variable_list backward(AutogradContext* ctx, variable_list grads);
};

at::Tensor FullTensorFn::forward(AutogradContext* ctx, const at::Tensor& t, Placements grad_placements) {
  const DTensorMeta& meta = peek_meta(t);
  save_layout(ctx, meta.spec, std::move(grad_placements));
  const at::Tensor whole =
      redistribute_below_autograd(t, Placements(meta.spec->mesh().ndim(), Replicate()), explicit_cause("full_tensor"));
  LocalGuard guard;
  const at::Tensor& local = meta_of(whole).locals.front();
  // What is given away must not be a rank's own memory: writing to it would change one replica of several.
  return whole.is_same(t) ? local.clone() : local.detach();
}

variable_list FullTensorFn::backward(AutogradContext* ctx, variable_list grads) {
  const auto s = saved_layout(ctx);
  if (!grads[0].defined()) return {at::Tensor(), at::Tensor()};
  const at::Tensor g = distributed_gradient(grads[0], s->spec->mesh());
  return {redistribute_as(g, s->placements, explicit_cause("full_tensor")), at::Tensor()};
}

void check_options(const RedistributeOptions& options, const char* function) {
  TORCH_CHECK_VALUE(options.max_bytes > 0, "[", function, "] max_bytes is ", options.max_bytes,
                    "; give the bytes that a rank may need meanwhile, at least 1");
}

// To any mesh of the tensor's world. Arguments are checked.
at::Tensor redistribute_checked(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                                const RedistributeOptions& options) {
  check_options(options, "redistribute");
  const Layout to(mesh, checked_placements(placements, mesh, tensor.dim(), "redistribute"));
  return redistribute_as(at::TensorList(&tensor, 1), c10::ArrayRef<Layout>(to), explicit_cause("redistribute"),
                         options)[0];
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

RedistributePlan plan_of(const at::Tensor& tensor, const Placements& placements, const RedistributeOptions& options) {
  const SpecPtr& spec = checked_layout(tensor, "plan_of").spec;
  check_options(options, "plan_of");
  return *cached_plan(spec, spec->mesh(), checked_placements(placements, spec->mesh(), tensor.dim(), "plan_of"),
                      {allowed_bytes(options)});
}

at::Tensor full_tensor(const at::Tensor& tensor, std::optional<Placements> grad_placements) {
  const DTensorMeta& meta = checked_layout(tensor, "full_tensor");
  TORCH_CHECK_NOT_IMPLEMENTED(!meta.locals.empty(), "[full_tensor] ", meta.spec->to_string(),
                              " has no data in this process: its world is ", meta.spec->mesh().world().name());
  Placements back = without_partials(meta.spec->placements());
  if (grad_placements) back = checked_placements(*grad_placements, meta.spec->mesh(), tensor.dim(), "full_tensor");
  return FullTensorFn::apply(tensor, std::move(back));
}

}  // namespace dtensor
