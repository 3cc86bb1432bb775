#include "dtensor/dispatch/internal/plain_dispatch.h"

#include <c10/util/Exception.h>

#include "comm/scope.h"
#include "dtensor/dispatch/composite_op_scope.h"
#include "dtensor/dispatch/inner_calls.h"
#include "dtensor/dispatch/internal/any_tensor.h"
#include "dtensor/dispatch/internal/call_hints.h"
#include "dtensor/dispatch/internal/call_in_progress.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/replicate.h"
#include "dtensor/tensor/representation.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

void run_plain(const OpInfo& info, Stack& stack) {
  c10::impl::ExcludeDispatchKeyGuard below_us{kDTensorKey};
  info.op.callBoxed(stack);
}

void make_replicated(const OpInfo& info, const DeviceMesh& mesh, Stack& stack) {
  const World& world = mesh.world();
  const bool has_data = !mesh.local_ranks().empty();
  if (info.device_arg >= 0) {
    auto& device = *(stack.end() - static_cast<std::ptrdiff_t>(info.args.size()) + info.device_arg);
    const auto is_of = [&](const World& w) { return device.toDevice().type() == w.device_type(); };
    if (device.isDevice() && !is_of(world) && !is_of(world.with_data())) return run_plain(info, stack);
    device = has_data ? world.device(mesh.local_ranks().front()) : c10::Device(c10::DeviceType::Meta);
  }
  run_plain(info, stack);
  const at::Tensor first = torch::jit::pop(stack).toTensor();
  if (first.layout() != c10::kStrided || first.is_quantized()) return stack.push_back(first);
  RankTensors locals;
  {
    LocalGuard guard;
    for (size_t i = 0; i < mesh.local_ranks().size(); ++i) {
      const c10::Device device = world.device(mesh.local_ranks()[i]);
      locals.push_back(i == 0 ? first : first.to(device, first.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
    }
  }
  const SpecPtr spec = Spec::get(mesh, Placements(mesh.ndim(), Replicate()), read_meta(first));
  at::Tensor result = make_result(spec, std::move(locals));
  mutable_hints(result).from_factory = true;
  stack.emplace_back(std::move(result));
}

// Detects torch::empty(), which calls at::empty() with autograd's key and that of views excluded. LibTorch's own code,
// which fills memory through a pointer (torch::tensor(), readers of files), calls at::empty() with one of them.
bool is_in_torch_empty() {
  const c10::DispatchKeySet excluded = c10::impl::tls_local_dispatch_key_set().excluded_;
  return excluded.has_any(c10::autograd_dispatch_keyset) && excluded.has(c10::DispatchKey::ADInplaceOrView);
}

// Its memory is not shared.
bool is_alone(const at::Tensor& t) { return t.defined() && t.has_storage() && t.storage().use_count() == 1; }

// Made by autograd's or a composite operator's own code, not by the user.
bool is_library_made(const at::Tensor& t) {
  const CompositeOpScope* code = CompositeOpScope::current();
  return is_alone(t) && (in_backward() || (code != nullptr && code->makes_plain() && !code->was_given(t)));
}

// Like Tensor::set_data: autograd and all handles keep the same tensor.
void become_distributed(const at::Tensor& t, const DeviceMesh& mesh) {
  t.unsafeGetTensorImpl()->shallow_copy_from(replicate_copy(t, mesh).getIntrusivePtr());
}

bool is_plain(const c10::IValue& arg) {
  return arg.isTensor() && arg.toTensor().defined() && !is_dtensor(arg.toTensor());
}

bool writes_distributed(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (info.args[i].written && args[i].isTensor() && is_dtensor(args[i].toTensor())) return true;
  }
  return false;
}

// A written list could need some tensors written as plain and others as distributed.
void check_no_written_list(const OpInfo& info, c10::ArrayRef<c10::IValue> args) {
  for (size_t i = 0; i < args.size(); ++i) {
    if (!info.args[i].written || info.args[i].kind != OpInfo::Arg::Kind::kTensorList || !args[i].isList()) continue;
    for (const auto& x : args[i].toListRef()) {
      TORCH_CHECK_NOT_IMPLEMENTED(!x.isTensor() || !is_dtensor(x.toTensor()), info.name,
                                  ": writes to the distributed tensors of '", info.op.schema().arguments()[i].name(),
                                  "' and to plain ones at once. Distribute the plain ones: "
                                  "distribute_tensor(t, mesh, {Replicate(), ...}).");
    }
  }
}

// Whether all distributed arguments are constants from factories in a MeshScope, not written to since.
bool from_factories_alone(c10::ArrayRef<c10::IValue> args) {
  return !any_tensor(args, [](const at::Tensor& t) { return is_dtensor(t) && !is_unwritten_factory_result(t); });
}

// The value of `t` as a plain tensor, for an operator that writes to a plain one.
at::Tensor whole_value(const at::Tensor& t, const OpInfo& info) {
  const CommCause cause{info.name, "", current_scope().module_path, true};
  const at::Tensor whole = redistribute_below_autograd(t, Placements(spec_of(t)->mesh().ndim(), Replicate()), cause);
  TORCH_CHECK_NOT_IMPLEMENTED(!meta_for_read(whole).locals.empty(), info.name,
                              ": writes to a plain tensor, which needs data; an abstract world has none.");
  return meta_for_read(whole).locals.front();
}

// Copies the value of `standing_in`, which was written in place of `t`, to `t`.
void take_over(const at::Tensor& t, const at::Tensor& standing_in, const OpInfo& info) {
  if (is_library_made(t)) {
    t.unsafeGetTensorImpl()->shallow_copy_from(standing_in.getIntrusivePtr());
    return;
  }
  const at::Tensor value = whole_value(standing_in, info);
  LocalGuard guard;
  if (t.sizes() != value.sizes()) t.resize_(value.sizes());
  t.copy_(value);
}

// If some of the written tensors are distributed, the plain ones are written as replicated ones.
void write_to_both(const OpInfo& info, const DeviceMesh& mesh, Stack& stack) {
  const auto args = torch::jit::last(stack, info.args.size());
  Stack own(args.begin(), args.end());
  for (size_t i = 0; i < own.size(); ++i) {
    if (info.args[i].written && is_plain(own[i])) own[i] = replicate_copy(own[i].toTensor(), mesh);
  }
  const Stack written = own;
  info.op.callBoxedForDispatchKey(kDTensorKey, own);
  for (size_t i = 0; i < args.size(); ++i) {
    if (info.args[i].written && is_plain(args[i])) take_over(args[i].toTensor(), written[i].toTensor(), info);
  }
  for (size_t r = 0; r < own.size(); ++r) {
    if (info.written_inputs[r] >= 0) own[r] = args[info.written_inputs[r]];
  }
  torch::jit::drop(stack, info.args.size());
  for (auto& result : own) stack.push_back(std::move(result));
}

}  // namespace

void dispatch_plain(const OpInfo& info, Stack& stack) {
  count_otherwise();
  const CompositeOpScope* code = CompositeOpScope::current();
  const DeviceMesh& mesh = code != nullptr ? code->mesh() : current_dispatch_scope().mesh;
  const std::string_view name = info.name;
  if (!mesh.defined() || !info.makes_tensor || name.rfind("aten::", 0) != 0) return run_plain(info, stack);
  const bool may_be_filled_by_pointer =
      code != nullptr || CallInProgress::any() || in_backward() || !is_in_torch_empty();
  if (name.rfind("aten::empty", 0) == 0 && may_be_filled_by_pointer && !mesh.world().is_meta())
    return run_plain(info, stack);
  make_replicated(info, mesh, stack);
}

void write_to_plain(const OpInfo& info, const DeviceMesh& mesh, Stack& stack) {
  count_otherwise();
  TORCH_CHECK(
      plain_is_replicated() || from_factories_alone(torch::jit::last(stack, info.args.size())), info.name,
      ": writes to a plain tensor, but other arguments are distributed on ", mesh.to_string(),
      ". Distribute the tensor that is written to, or gather the others with full_tensor(). The state of an optimizer "
      "is such a tensor if it was made before distribute_module(), by a step or by the constructor of Adagrad: make "
      "the optimizer after distribute_module(), and carry its state over with dtensor::save() and dtensor::load().");
  check_no_written_list(info, torch::jit::last(stack, info.args.size()));
  if (writes_distributed(info, torch::jit::last(stack, info.args.size()))) return write_to_both(info, mesh, stack);
  const auto plain = [&](const at::Tensor& t) { return is_dtensor(t) ? whole_value(t, info) : t; };
  const size_t base = stack.size() - info.args.size();
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < info.args.size(); ++i) {
    c10::IValue& arg = stack[base + i];
    if (info.args[i].written && arg.isTensor() && !is_dtensor(arg.toTensor())) written.push_back(arg.toTensor());
    arg = with_tensors(arg, plain);
  }
  run_plain(info, stack);
  for (const at::Tensor& t : written) {
    if (is_library_made(t)) become_distributed(t, mesh);
  }
}

}  // namespace dtensor::internal
