#include "dtensor/redistribution/stand_in.h"

#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <utility>

#include "dtensor/from_local.h"
#include "dtensor/redistribution/internal/saved_layout.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/ensure_strides.h"
#include "dtensor/tensor/representation.h"
#include "mesh/world.h"
#include "plan/largest_part.h"

namespace dtensor::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

SpecPtr stand_in_spec(const DeviceMesh& mesh, const TensorMeta& meta) {
  return Spec::get(DeviceMesh(mesh.world(), {1}, {"rank"}, {mesh.ranks().front()}), {Replicate()}, meta);
}

// No memory of its own, but what keeps that of `t` alive, which a part shares.
std::shared_ptr<LocalStorage> inside_memory_of(const at::Tensor& t) {
  const std::shared_ptr<LocalStorage> whole = meta_without_sync(t).storage;
  return {new LocalStorage(*whole, 0), [whole](LocalStorage* own) { delete own; }};
}

struct Relabelling {
  SpecPtr to, gradient;  // layouts of the result, and in which the gradient comes back
  bool copies_gradient = false;
};

// The same memory with another layout, of another mesh.
struct RelabelFn : torch::autograd::Function<RelabelFn> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& t, Relabelling how) {
    const SpecPtr to = how.to;
    save_for_backward(ctx, std::move(how));
    ctx->set_materialize_grads(false);  // would make plain zeros
    return make_view(to, {}, t, /*offset=*/0, inside_memory_of(t));
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto how = saved_for_backward<Relabelling>(ctx);
    if (!grads[0].defined()) return {make_dtensor(how.gradient, {}), at::Tensor()};
    const at::Tensor own = redistribute_as(distributed_gradient(grads[0], how.to->mesh()), how.to->placements(),
                                           explicit_cause("from_local"));
    const at::Tensor back = RelabelFn::apply(own, Relabelling{how.gradient, how.to, false});
    return {how.copies_gradient ? back.clone() : back, at::Tensor()};
  }
};

}  // namespace

at::Tensor make_stand_in(const DeviceMesh& mesh, const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  const Shape shape(sizes.begin(), sizes.end());
  return make_dtensor(stand_in_spec(mesh, TensorMeta{shape, row_major_strides(sizes), dtype}), {});
}

std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const Placements& grad_placements) {
  const SpecPtr spec = spec_of(tensor);
  if (spec->mesh().world().has_data()) return to_local(tensor, grad_placements);
  const Shape sizes = largest_part(spec->sizes(), spec->mesh().shape(), spec->placements());
  const std::vector<int64_t> strides = dense_in_order_of(tensor.strides(), sizes);
  const TensorMeta meta{sizes, Shape(strides.begin(), strides.end()), spec->dtype()};
  return {RelabelFn::apply(tensor, Relabelling{stand_in_spec(spec->mesh(), meta),
                                               spec->with_placements(grad_placements), /*copies_gradient=*/true})};
}

at::Tensor from_parts_of(const std::vector<at::Tensor>& parts, const DeviceMesh& mesh, const Placements& placements,
                         const std::vector<int64_t>& sizes) {
  if (mesh.world().has_data()) {
    FromLocalOptions options;
    options.shape = sizes;
    return from_local(parts, mesh, placements, options);
  }
  const SpecPtr to = Spec::get(mesh, placements, sizes, parts[0].scalar_type());
  return RelabelFn::apply(parts[0], Relabelling{to, spec_of(parts[0]), /*copies_gradient=*/false});
}

int64_t rank_of_part(const DeviceMesh& mesh, size_t i) {
  return mesh.world().has_data() ? mesh.local_ranks()[i] : mesh.ranks().front();
}

}  // namespace dtensor::internal
