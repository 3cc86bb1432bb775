#include "dtensor/factories.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <functional>
#include <mutex>

#include "comm/scope.h"
#include "dtensor/redistribute.h"
#include "dtensor/redistribution/internal/redistribute_arguments.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

// Allocates every rank's part, lets `fill` write to the distributed tensor, and redistributes it to `placements`.
at::Tensor make(const char* function, const std::vector<int64_t>& sizes, const DeviceMesh& mesh, Placements placements,
                c10::ScalarType dtype, bool requires_grad, const std::function<void(const at::Tensor&)>& fill) {
  TORCH_CHECK_VALUE(mesh.defined(), "[", function, "] no mesh: give a DeviceMesh(world, shape)");
  for (int64_t n : sizes)
    TORCH_CHECK_VALUE(n >= 0, "[", function, "] sizes ", c10::IntArrayRef(sizes), " have a negative entry");
  if (placements.empty()) placements.assign(mesh.ndim(), Replicate());
  const Placements normal = checked_placements(placements, mesh, static_cast<int64_t>(sizes.size()), function);
  // A Partial result is filled from the whole value, locally.
  const SpecPtr spec = Spec::get(mesh, without_partials(normal), sizes, dtype);

  c10::AutoGradMode no_grad(false);
  RankTensors locals;
  {
    LocalGuard guard;
    for (size_t i = 0; i < mesh.local_ranks().size(); ++i) {
      const Shape part = spec->local_shape(static_cast<int64_t>(i));
      locals.push_back(at::empty(c10::IntArrayRef(part.data(), part.size()),
                                 at::TensorOptions().dtype(dtype).device(mesh.world().device(mesh.local_ranks()[i]))));
    }
  }
  at::Tensor result = make_dtensor(spec, std::move(locals));
  if (fill) fill(result);
  result = redistribute_below_autograd(result, normal, {function, "", current_scope().module_path, /*implicit=*/false});
  result.set_requires_grad(requires_grad);
  return result;
}

c10::ScalarType float_dtype(const FactoryOptions& options) {
  return options.dtype.value_or(c10::get_default_dtype_as_scalartype());
}

c10::ScalarType dtype_of(const c10::Scalar& value) {
  if (value.isBoolean()) return c10::ScalarType::Bool;
  if (value.isIntegral(/*includeBool=*/false)) return c10::ScalarType::Long;
  return value.isComplex() ? c10::toComplexType(c10::get_default_dtype_as_scalartype())
                           : c10::get_default_dtype_as_scalartype();
}

// The same number in every part, written directly.
std::function<void(const at::Tensor&)> constant(const c10::Scalar& value) {
  return [value](const at::Tensor& t) {
    LocalGuard guard;
    for (const auto& local : meta_for_read(t).locals) local.fill_(value);
  };
}

// Of the generators of one device.
void share_state(const DeviceMesh& mesh, c10::Device of) {
  at::Generator generator = at::globalContext().defaultGenerator(of);
  const LocalGuard guard;
  at::Tensor state;
  {
    std::lock_guard lock(generator.mutex());
    state = generator.get_state();
  }
  const at::Tensor shared = distribute_tensor(state, mesh);
  if (mesh.local_ranks().empty()) return;
  state = meta_for_read(shared).locals.front().cpu();
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

}  // namespace

at::Tensor zeros(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements,
                 const FactoryOptions& options) {
  return make("zeros", sizes, mesh, placements, float_dtype(options), options.requires_grad, constant(0));
}

at::Tensor ones(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements,
                const FactoryOptions& options) {
  return make("ones", sizes, mesh, placements, float_dtype(options), options.requires_grad, constant(1));
}

at::Tensor full(const std::vector<int64_t>& sizes, const c10::Scalar& value, const DeviceMesh& mesh,
                const Placements& placements, const FactoryOptions& options) {
  return make("full", sizes, mesh, placements, options.dtype.value_or(dtype_of(value)), options.requires_grad,
              constant(value));
}

at::Tensor empty(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements,
                 const FactoryOptions& options) {
  return make("empty", sizes, mesh, placements, float_dtype(options), options.requires_grad, nullptr);
}

at::Tensor rand(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements,
                const FactoryOptions& options) {
  return make("rand", sizes, mesh, placements, float_dtype(options), options.requires_grad,
              [](const at::Tensor& t) { t.uniform_(); });
}

at::Tensor randn(const std::vector<int64_t>& sizes, const DeviceMesh& mesh, const Placements& placements,
                 const FactoryOptions& options) {
  return make("randn", sizes, mesh, placements, float_dtype(options), options.requires_grad,
              [](const at::Tensor& t) { t.normal_(); });
}

void share_random_state(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.defined(), "[share_random_state] no mesh: give a DeviceMesh(world, shape)");
  const World& world = mesh.world();
  if (!world.has_data()) return;
  share_state(mesh, c10::DeviceType::CPU);
  if (world.device_type() == c10::DeviceType::CPU) return;
  const auto& ranks = mesh.local_ranks();
  share_state(mesh, ranks.empty() ? c10::Device(world.device_type(), 0) : world.device(ranks.front()));
}

}  // namespace dtensor
