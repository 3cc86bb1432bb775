#include "dtensor/dispatch/internal/call_inputs.h"

#include <algorithm>
#include <string>
#include <utility>

#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/dispatch/internal/call_hints.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/replicate.h"

namespace dtensor::internal {

void prepare_parameter_of_autograd(const OpInfo& info, const at::Tensor& t) {
  if (!is_leaf_parameter(t)) return;
  if (!info.always_shares) reduce_partial_parameter(t, info.name);
  keep_gradient_layout(t);
  meta_without_sync(t).storage->is_parameter.store(true, std::memory_order_relaxed);
}

void prepare_parameters(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  any_tensor(args, [&](const at::Tensor& t) {
    if (is_dtensor(t)) prepare_parameter(info, t);
    return false;
  });
}

bool has_dtensor(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (info.args[i].kind == ArgSlot::Kind::kTensor) {
      if (args[i].isTensor() && is_dtensor(args[i].toTensor())) return true;
    } else if (info.args[i].kind == ArgSlot::Kind::kTensorList && args[i].isList()) {
      for (const auto& x : args[i].toListRef()) {
        if (x.isTensor() && is_dtensor(x.toTensor())) return true;
      }
    }
  }
  return false;
}

absl::InlinedVector<const at::Tensor*, 6> Inputs::pointers() const {
  absl::InlinedVector<const at::Tensor*, 6> all;
  for (const at::Tensor& t : tensors) all.push_back(&t);
  return all;
}

namespace {

// Takes the mutable layouts away from inputs that the call writes twice: each might get another layout.
void drop_written_twice(Inputs& in) {
  auto& numbers = in.context.mutable_layouts;
  const auto memory_of = [&](int k) { return meta_without_sync(in.tensors[k]).storage.get(); };
  const c10::SmallVector<int, 2> all = numbers;
  const auto is_written_twice = [&](int k) {
    return std::count_if(all.begin(), all.end(), [&](int other) { return memory_of(other) == memory_of(k); }) > 1;
  };
  numbers.erase(std::remove_if(numbers.begin(), numbers.end(), is_written_twice), numbers.end());
}

// Error: plain tensors may not stand beside distributed ones in this scope.
void replicate_plain_inputs(const OpInfo& info, Inputs& in) {
  const bool allowed = plain_is_replicated();
  for (size_t i = 0; i < in.slots.size(); ++i) {
    for (int k = in.slots[i].first; k < in.slots[i].first + in.slots[i].count; ++k) {
      at::Tensor& t = in.tensors[k];
      if (!t.defined() || is_dtensor(t)) continue;
      if (!allowed && !counts_as_number(t)) {
        const ScopeGuard running([&in](Scope& s) { s.module_path = module_of_call(in.tensors); });
        throw_plain_beside_distributed(info.name, info.op.schema().arguments()[i].name(), t, in.mesh);
      }
      t = replicate_plain(t, in.mesh);
      count_otherwise();
    }
  }
}

}  // namespace

Inputs gather_inputs(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  Inputs in;
  in.slots.resize(args.size());
  bool any_plain = false, several_meshes = false;
  const auto add = [&](const at::Tensor& t, size_t arg) {
    in.tensors.push_back(t);
    in.arg_of.push_back(static_cast<uint16_t>(arg));
    if (!t.defined()) return;
    if (!is_dtensor(t)) {
      any_plain = true;
      if (info.args[arg].written) in.writes_plain = true;
      return;
    }
    const DeviceMesh& mesh = spec_of(t)->mesh();
    if (!in.mesh.defined()) in.mesh = mesh;
    several_meshes = several_meshes || !(in.mesh == mesh);
    prepare_parameter(info, t);
    const LocalStorage& storage = *meta_without_sync(t).storage;
    if (storage.observer) in.observed = true;
    if (storage.parameter->traits) in.has_module_traits = true;
    if (spec_of(t)->has_partial()) in.has_partial = true;
    if (info.args[arg].written && !info.args[arg].out && has_mutable_layout(t))
      in.context.mutable_layouts.push_back(static_cast<int>(in.tensors.size()) - 1);
  };
  for (size_t i = 0; i < args.size(); ++i) {
    const ArgSlot::Kind kind = info.args[i].kind;
    if (kind == ArgSlot::Kind::kStatic) continue;
    ArgSlot& slot = in.slots[i] = {kind, static_cast<int>(in.tensors.size()), 1};
    if (kind == ArgSlot::Kind::kTensor) {
      add(args[i].isTensor() ? args[i].toTensor() : at::Tensor(), i);
      continue;
    }
    const auto list = args[i].isNone() ? c10::ArrayRef<c10::IValue>() : args[i].toListRef();
    slot.count = static_cast<int>(list.size());
    for (const auto& x : list) add(x.isTensor() ? x.toTensor() : at::Tensor(), i);
  }
  if (several_meshes) {
    in.mesh = bring_to_one_mesh(info, in);
    count_otherwise();
  }
  if (in.writes_plain) return in;
  if (any_plain) replicate_plain_inputs(info, in);
  if (in.context.mutable_layouts.size() > 1) drop_written_twice(in);
  return in;
}

std::string arg_name(const OpInfo& info, const Inputs& in, int input) {
  return input_name(info.op.schema(), {in.slots.data(), in.slots.size()}, input);
}

OpCall make_call(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args) {
  OpCall call(info.op);
  call.mesh = in.mesh;
  call.slots.assign(in.slots.begin(), in.slots.end());
  call.context = in.context;
  call.args.reserve(args.size());
  call.inputs.reserve(in.tensors.size());
  for (size_t i = 0; i < args.size(); ++i) {
    call.args.push_back(in.slots[i].kind == ArgSlot::Kind::kStatic ? args[i] : c10::IValue());
  }
  for (const auto& t : in.tensors) call.inputs.push_back(t.defined() ? spec_of(t) : nullptr);
  return call;
}

void fill_local_stack(torch::jit::Stack& stack, const Inputs& in, c10::ArrayRef<c10::IValue> args,
                      const std::vector<RankTensors>& locals, size_t r) {
  stack.clear();
  for (size_t a = 0; a < args.size(); ++a) {
    const ArgSlot& slot = in.slots[a];
    if (slot.kind == ArgSlot::Kind::kStatic) {
      stack.push_back(args[a]);
    } else if (slot.kind == ArgSlot::Kind::kTensor) {
      if (in.tensors[slot.first].defined()) {
        stack.emplace_back(locals[slot.first][r]);
      } else {
        stack.push_back(args[a]);
      }
    } else if (args[a].isNone()) {
      stack.push_back(args[a]);
    } else if (args[a].isTensorList()) {
      c10::List<at::Tensor> list;
      for (int k = slot.first; k < slot.first + slot.count; ++k) {
        list.push_back(in.tensors[k].defined() ? locals[k][r] : at::Tensor());
      }
      stack.emplace_back(std::move(list));
    } else {
      c10::List<std::optional<at::Tensor>> list;
      for (int k = slot.first; k < slot.first + slot.count; ++k) {
        list.push_back(in.tensors[k].defined() ? std::optional<at::Tensor>(locals[k][r]) : std::nullopt);
      }
      stack.emplace_back(std::move(list));
    }
  }
}

}  // namespace dtensor::internal
