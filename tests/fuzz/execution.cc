#include "tests/fuzz/execution.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <torch/csrc/autograd/autograd.h>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "tests/fuzz/undefined.h"

namespace dtensor::fuzz {
using namespace internal;

bool is_written(const c10::Argument& argument) {
  const auto* alias = argument.alias_info();
  return alias != nullptr && alias->isWrite();
}

namespace {

c10::IValue optional_tensors(const std::vector<at::Tensor>& tensors) {
  c10::List<std::optional<at::Tensor>> list;
  for (const auto& t : tensors) list.push_back(t.defined() ? std::optional(t) : std::nullopt);
  return list;
}

struct ToValue {
  const std::map<int, at::Tensor>& tensors;
  const c10::Type& type;

  at::Tensor at(int id) const { return id < 0 ? at::Tensor() : tensors.at(id); }

  c10::IValue operator()(std::monostate) const { return {}; }
  c10::IValue operator()(const std::string& s) const { return s; }
  c10::IValue operator()(c10::ScalarType t) const { return static_cast<int64_t>(t); }
  c10::IValue operator()(c10::MemoryFormat f) const { return static_cast<int64_t>(f); }
  c10::IValue operator()(const std::vector<int64_t>& v) const { return v; }
  c10::IValue operator()(const std::vector<double>& v) const {
    const auto* elements = type.castRaw<c10::ListType>();
    if (elements == nullptr || elements->getElementType()->kind() != c10::TypeKind::NumberType) return v;
    c10::impl::GenericList scalars(c10::NumberType::get());
    for (double d : v) scalars.push_back(d);
    return scalars;
  }
  c10::IValue operator()(const std::vector<bool>& v) const {
    c10::List<bool> list;
    for (bool b : v) list.push_back(b);
    return list;
  }
  c10::IValue operator()(bool b) const { return b; }
  c10::IValue operator()(int64_t i) const { return i; }
  c10::IValue operator()(double d) const { return d; }
  c10::IValue operator()(const TensorRef& t) const { return t.id < 0 ? c10::IValue() : c10::IValue(at(t.id)); }
  c10::IValue operator()(const TensorRefs& refs) const {
    std::vector<at::Tensor> list;
    for (int id : refs.ids) list.push_back(at(id));
    const auto* elements = type.castRaw<c10::ListType>();
    if (elements != nullptr && elements->getElementType()->kind() == c10::TypeKind::OptionalType)
      return optional_tensors(list);
    return list;
  }
};

using Sizes = std::vector<std::pair<at::Tensor, std::vector<int64_t>>>;

Sizes sizes_of_outputs(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  Sizes sizes;
  for (size_t i = 0; i < stack.size(); ++i) {
    if (schema.arguments()[i].is_out() && stack[i].isTensor())
      sizes.emplace_back(stack[i].toTensor(), stack[i].toTensor().sizes().vec());
  }
  return sizes;
}

// LibTorch still resizes a non-empty out=, with a deprecation warning; this is not tested.
void check_sizes(const Sizes& before) {
  for (const auto& [t, sizes] : before) {
    TORCH_CHECK(t.sizes() == sizes || (sizes.size() == 1 && sizes[0] == 0), "out= has other sizes than the result");
  }
}

c10::OperatorHandle operator_of(const Step& step) {
  const size_t dot = step.op.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      step.op.substr(0, dot).c_str(), dot == std::string::npos ? "" : step.op.substr(dot + 1).c_str());
}

bool differentiable(const at::Tensor& t) { return t.defined() && (t.is_floating_point() || t.is_complex()); }

}  // namespace

namespace {
c10::Device& device_setting() {
  static c10::Device device = c10::kCPU;
  return device;
}
}  // namespace

c10::Device program_device() { return device_setting(); }
void set_program_device(c10::Device device) { device_setting() = device; }

const DeviceMesh& mesh_of(const std::vector<int64_t>& shape) {
  static auto* meshes = new std::map<std::vector<int64_t>, DeviceMesh>;
  static auto* worlds = new std::map<int64_t, World>;
  auto found = meshes->find(shape);
  if (found != meshes->end()) return found->second;
  int64_t size = 1;
  for (int64_t n : shape) size *= n;
  auto world = worlds->find(size);
  if (world == worlds->end()) world = worlds->emplace(size, World::local(size, program_device())).first;
  return meshes->emplace(shape, DeviceMesh(world->second, shape)).first->second;
}

const c10::FunctionSchema& schema_of(const Step& step) { return operator_of(step).schema(); }

std::vector<int> written_by(const Step& step) {
  std::vector<int> ids;
  if (step.op == kRedistribute) return ids;
  const auto& arguments = schema_of(step).arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (!is_written(arguments[a])) continue;
    if (const auto* ref = std::get_if<TensorRef>(&step.args[a])) ids.push_back(ref->id);
    if (const auto* refs = std::get_if<TensorRefs>(&step.args[a]))
      ids.insert(ids.end(), refs->ids.begin(), refs->ids.end());
  }
  std::erase(ids, -1);
  return ids;
}

void Execution::add(const Leaf& leaf) {
  at::Tensor t = value_of(leaf).to(device_);
  if (mesh_.defined()) {
    if (is_partial(leaf)) {
      FromLocalOptions options;
      options.shape = leaf.sizes;
      auto parts = parts_of(leaf, mesh_);
      for (at::Tensor& part : parts) part = part.to(device_);
      t = from_local(parts, mesh_, leaf.placements, options).clone();
    } else {
      t = distribute_tensor(t, mesh_, leaf.placements);
    }
  }
  if (leaf.requires_grad) t.requires_grad_();
  tensors_[leaf.id] = t;
}

void Execution::run(const Step& step) {
  values_.clear();
  if (step.op == kRedistribute) {
    const at::Tensor& t = tensors_.at(std::get<TensorRef>(step.args[0]).id);
    at::Tensor moved = mesh_.defined() ? redistribute(t, step.placements) : t;
    tensors_[step.first_id] = moved.is_same(t) ? t.clone() : moved;  // a written tensor has only one of the two
    return;
  }
  const auto op = operator_of(step);
  const auto& schema = op.schema();
  torch::jit::Stack stack;
  for (size_t i = 0; i < step.args.size(); ++i) {
    c10::TypePtr type = schema.arguments()[i].type();
    if (const auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
    stack.push_back(std::visit(ToValue{tensors_, *type}, step.args[i]));
  }
  if (!mesh_.defined()) check_defined(schema, stack);
  const auto before = sizes_of_outputs(schema, stack);
  op.callBoxed(stack);
  check_sizes(before);
  int id = step.first_id;
  for (size_t r = 0; r < stack.size(); ++r) {
    const bool written = is_written(schema.returns()[r]);
    if (stack[r].isTensor()) {
      if (!written) tensors_[id] = stack[r].toTensor();
      ++id;
    } else if (stack[r].isTensorList()) {
      for (const at::Tensor& t : stack[r].toTensorVector()) {
        if (!written && id < step.first_id + 32) tensors_[id] = t;
        ++id;
      }
    } else {
      values_.push_back(stack[r]);
    }
  }
}

at::Tensor Execution::seed(const at::Tensor& output, Program::Seeds seeds, int number) const {
  const auto real = at::kDouble;
  at::Tensor w = at::arange(output.numel(), real).mul(0.7).add(number).cos().view(output.sizes());
  w = output.is_complex() ? at::complex(w, w.mul(2).sin()).to(output.scalar_type()) : w.to(output.scalar_type());
  w = w.to(device_);
  if (!mesh_.defined() || !is_dtensor(output)) return w;
  Leaf leaf;
  leaf.placements = Placements(mesh_.ndim(), Replicate());
  if (seeds == Program::Seeds::kLikeOutput) leaf.placements = without_partials(spec_of(output)->placements());
  if (seeds == Program::Seeds::kPartial) leaf.placements[0] = Partial();
  return distribute_tensor(w, mesh_, leaf.placements);
}

std::vector<at::Tensor> Execution::gradients_of(const std::vector<at::Tensor>& roots,
                                                const std::vector<at::Tensor>& leaves, Program::Seeds seeds) const {
  std::vector<at::Tensor> used, weights;
  for (size_t k = 0; k < roots.size(); ++k) {
    // A gradient that depends on nothing may or may not require gradients: the numbering of the others stays.
    if (!roots[k].defined() || !roots[k].requires_grad()) continue;
    used.push_back(roots[k]);
    weights.push_back(seed(roots[k], seeds, static_cast<int>(k)));
  }
  if (used.empty()) return std::vector<at::Tensor>(leaves.size());
  return torch::autograd::grad(used, leaves, weights, /*retain_graph=*/true, /*create_graph=*/true,
                               /*allow_unused=*/true);
}

std::vector<at::Tensor> Execution::gradients(const Program& program, int order) const {
  std::vector<at::Tensor> roots, leaves;
  for (const Leaf& leaf : program.leaves) {
    if (leaf.requires_grad) leaves.push_back(tensors_.at(leaf.id));
  }
  for (const auto& [id, t] : tensors_) {
    if (differentiable(t) && t.requires_grad() && !t.is_leaf()) roots.push_back(t);
  }
  if (roots.empty() || leaves.empty()) return {};
  const auto gradients = gradients_of(roots, leaves, program.seeds);
  return order == 1 ? gradients : gradients_of(gradients, leaves, program.seeds);
}

}  // namespace dtensor::fuzz
