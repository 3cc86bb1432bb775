#include "dtensor/dtensor_handle.h"

#include <ATen/core/Formatting.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "dtensor/dispatch/local_parts.h"
#include "dtensor/from_local.h"
#include "dtensor/tensor/representation.h"
#include "observe/layout_grid.h"
#include "observe/layout_text.h"
#include "plan/redistribute_plan.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr int64_t kMaxRanksDrawn = 256;
constexpr int64_t kMaxValues = 64;
constexpr size_t kMaxRanksPrinted = 8;

std::string short_placements(const Placements& placements) {
  std::string s;
  for (const auto& p : placements) {
    if (!s.empty()) s += ' ';
    s += p.is_mask_partial()
             ? (p.reduce_op() == ReduceOp::kSum ? "MaskP" : "MaskP(" + std::string(to_string(p.reduce_op())) + ")")
             : to_string(p);
  }
  return s;
}

std::string first_line(const Spec& spec) {
  std::string s(short_name(spec.dtype()));
  s += '[';
  for (size_t d = 0; d < spec.sizes().size(); ++d) s += (d > 0 ? ", " : "") + std::to_string(spec.sizes()[d]);
  return s + "](" + short_placements(spec.placements()) + ") @ " + spec.mesh().to_string();
}

void write_picture(std::ostream& os, const Spec& spec) {
  if (spec.mesh().size() > kMaxRanksDrawn || spec.meta().numel() == 0) return;
  int64_t sharded = 0;
  for (int64_t d = 0; d < spec.ndim(); ++d) {
    sharded += std::any_of(spec.placements().begin(), spec.placements().end(),
                           [&](const auto& p) { return p.is_sharded_on(d); });
  }
  if (sharded > 2) return;
  const LayoutGrid grid = layout_grid(spec);
  if (spec.ndim() > 2) os << "  dims " << grid.dims[0] << " (down) and " << grid.dims[1] << " (across)\n";
  os << grid_text(grid, /*to_scale=*/false);
  if (!grid.empty.empty()) {
    os << "  nothing on rank" << (grid.empty.size() > 1 ? "s " : " ") << join_ranks(grid.empty, ", ") << '\n';
  }
}

template <typename T, typename Format>
void write_nested(std::ostream& os, const T*& value, c10::IntArrayRef sizes, const Format& format) {
  if (sizes.empty()) {
    os << format(*value++);
    return;
  }
  os << '[';
  for (int64_t i = 0; i < sizes[0]; ++i) {
    if (i > 0) os << ", ";
    write_nested(os, value, sizes.slice(1), format);
  }
  os << ']';
}

void write_values(std::ostream& os, const at::Tensor& local) {
  const auto write_as = [&](auto zero, const auto& format) {
    using T = decltype(zero);
    const at::Tensor t = local.to(at::kCPU, c10::CppTypeToScalarType<T>::value).contiguous();
    const T* value = t.template const_data_ptr<T>();
    write_nested(os, value, t.sizes(), format);
  };
  const auto number = [](double v) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.4g", v);
    return std::string(buffer);
  };
  if (local.scalar_type() == at::kBool) {
    write_as(bool{}, [](bool v) { return v ? "true" : "false"; });
  } else if (c10::isIntegralType(local.scalar_type(), /*includeBool=*/false)) {
    write_as(int64_t{}, [](int64_t v) { return std::to_string(v); });
  } else if (local.is_complex()) {
    write_as(c10::complex<double>{}, [&](c10::complex<double> v) {
      return number(v.real()) + (v.imag() < 0 ? "-" : "+") + number(std::abs(v.imag())) + "j";
    });
  } else {
    write_as(double{}, number);
  }
}

void write_locals(std::ostream& os, const at::Tensor& t) {
  if (!has_parts(t)) {
    os << "  parts not fetched: fetch_parts(t) on all ranks brings them\n";
    return;
  }
  const DTensorMeta& meta = meta_for_read(t);
  int64_t count = 0;
  for (const auto& local : meta.locals) count += local.numel();
  if (meta.locals.empty() || meta.locals.size() > kMaxRanksPrinted || count > kMaxValues) return;
  LocalGuard guard;
  for (size_t i = 0; i < meta.locals.size(); ++i) {
    os << "  rank " << meta.spec->mesh().local_ranks()[i] << ": ";
    write_values(os, meta.locals[i].resolve_conj().resolve_neg());
    os << '\n';
  }
}

}  // namespace

DTensor::DTensor(at::Tensor tensor) : tensor_(std::move(tensor)) {
  TORCH_CHECK_TYPE(tensor_.defined(), "[DTensor] the tensor is undefined");
  TORCH_CHECK_TYPE(
      is_dtensor(tensor_), "[DTensor] the tensor of shape ", tensor_.sizes(), " on ", tensor_.device(),
      " is plain, not distributed: distribute_tensor(t, mesh, placements) spreads it, from_local(parts, mesh, "
      "placements) takes parts that exist already");
}

const Spec& DTensor::spec() const { return *spec_of(tensor_); }

const DeviceMesh& DTensor::mesh() const { return spec().mesh(); }

const Placements& DTensor::placements() const { return spec().placements(); }

RedistributePlan DTensor::plan_to(const Placements& to) const { return plan_of(tensor_, to); }

std::vector<at::Tensor> DTensor::locals() const { return read_parts(tensor_, "DTensor::locals"); }

std::string DTensor::name() const {
  const auto& name = meta_without_sync(tensor_).name;
  return name ? *name : std::string();
}

at::Tensor DTensor::local(int64_t i) const {
  const RankTensors& locals = read_parts(tensor_, "DTensor::local");
  TORCH_CHECK_INDEX(i >= 0 && i < static_cast<int64_t>(locals.size()), "[DTensor] local(", i, "): this process has ",
                    locals.size(), " local parts of ", spec().to_string());
  return locals[i];
}

std::vector<int64_t> DTensor::local_shape(int64_t i) const {
  const auto n = static_cast<int64_t>(mesh().local_ranks().size());
  TORCH_CHECK_INDEX(i >= 0 && i < n, "[DTensor] local_shape(", i, "): this process owns ", n, " ranks of ",
                    mesh().to_string(), "; shape_on_rank(rank) answers for any");
  const Shape s = spec().local_shape(i);
  return {s.begin(), s.end()};
}

std::vector<int64_t> DTensor::shape_on_rank(int64_t rank) const {
  const Shape s = spec().layout_of_rank(rank).sizes();
  return {s.begin(), s.end()};
}

std::vector<at::Tensor> DTensor::to_local(std::optional<Placements> grad_placements) const {
  return dtensor::to_local(tensor_, std::move(grad_placements));
}

at::Tensor DTensor::full_tensor(std::optional<Placements> grad_placements) const {
  return dtensor::full_tensor(tensor_, std::move(grad_placements));
}

std::optional<DTensor> DTensor::grad() const {
  const at::Tensor& g = tensor_.grad();
  if (!g.defined()) return std::nullopt;
  return DTensor(g);
}

std::string DTensor::to_string() const {
  std::ostringstream os;
  os << *this;
  return os.str();
}

std::ostream& operator<<(std::ostream& os, const DTensor& t) {
  os << first_line(t.spec()) << '\n';
  write_picture(os, t.spec());
  write_locals(os, t.tensor());
  return os;
}

void print(const at::Tensor& t) {
  if (is_dtensor(t)) {
    std::cout << DTensor(t);
  } else {
    std::cout << t << '\n';
  }
}

}  // namespace dtensor
