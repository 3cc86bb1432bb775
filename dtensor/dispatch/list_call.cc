#include "dtensor/dispatch/list_call.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/decide_call.h"
#include "dtensor/dispatch/internal/typed_kernels.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/representation.h"
#include "propagation/decision.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// An argument of all calls of the element operator: values[n * step] is that of the n-th.
struct ListArgument {
  const c10::IValue* values;
  size_t step;  // 0: the same for all

  const c10::IValue& operator[](size_t n) const { return values[n * step]; }
};

struct KeyHash {
  size_t operator()(const CacheKey& key) const { return absl::Hash<absl::Span<const uint64_t>>()(key); }
};

class ListCall {
 public:
  // `args`: those of `op`. Valid as long as they are.
  ListCall(const OpInfo& op, const OpInfo& element, c10::ArrayRef<c10::IValue> args)
      : op_(op), element_(element), op_args_(args) {
    for (const c10::IValue& value : args) args_.push_back({&value, 0});
  }

  // False: see run_on_local_lists().
  bool decide();
  // The results of `op`. REQUIRES: decide() returned true.
  Stack run() const;

 private:
  using Tensors = absl::InlinedVector<const at::Tensor*, 4>;

  bool read_lists();
  bool decide(size_t n);
  bool writes_one_memory_twice() const;
  Tensors tensors_of(size_t n) const;  // of the n-th call; empty: one is plain
  void check_hooks(const Tensors& tensors) const;
  std::shared_ptr<const Decision> find_decision(size_t n, const Tensors& tensors, bool mutable_layout);
  Stack local_arguments(size_t r) const;
  void note_writes() const;
  void report_works() const;
  const at::Tensor& first_tensor(size_t n) const { return args_[first_tensor_][n].toTensor(); }

  const OpInfo& op_;
  const OpInfo& element_;
  const c10::ArrayRef<c10::IValue> op_args_;
  const OpInfo::Resolved* resolved_ = nullptr;
  absl::InlinedVector<ListArgument, 8> args_;
  size_t count_ = 0;         // of calls
  size_t first_tensor_ = 0;  // the first argument that is a tensor
  bool writes_ = false;      // to that argument
  DeviceMesh mesh_;
  // Calls with equal keys have equal decisions.
  absl::flat_hash_map<CacheKey, std::shared_ptr<const Decision>, KeyHash> known_;
  std::vector<const Decision*> decisions_;  // by call
};

bool ListCall::read_lists() {
  bool any = false;
  for (size_t a = 0; a < args_.size(); ++a) {
    const c10::IValue& value = *args_[a].values;
    if (!value.isList()) continue;
    const c10::ArrayRef<c10::IValue> list = value.toListRef();
    if (list.empty() || (any && list.size() != count_)) return false;
    count_ = list.size();
    any = true;
    args_[a] = {list.data(), 1};
  }
  while (first_tensor_ < args_.size() && element_.args[first_tensor_].kind != ArgSlot::Kind::kTensor) ++first_tensor_;
  return any && first_tensor_ < args_.size();
}

ListCall::Tensors ListCall::tensors_of(size_t n) const {
  Tensors tensors;
  for (size_t a = 0; a < args_.size(); ++a) {
    if (element_.args[a].kind != ArgSlot::Kind::kTensor) continue;
    const c10::IValue& value = args_[a][n];
    if (!value.isTensor() || !is_dtensor(value.toTensor())) return {};
    tensors.push_back(&value.toTensor());
  }
  return tensors;
}

void ListCall::check_hooks(const Tensors& tensors) const {
  Inputs in;
  for (size_t a = 0; a < args_.size(); ++a) {
    if (element_.args[a].kind != ArgSlot::Kind::kTensor) continue;
    in.tensors.push_back(*tensors[in.tensors.size()]);
    in.args.push_back(static_cast<uint16_t>(a));
  }
  check_hooks_ran(element_, in);
}

std::shared_ptr<const Decision> ListCall::find_decision(size_t n, const Tensors& tensors, bool mutable_layout) {
  for (const at::Tensor* t : tensors) {
    const DeviceMesh& mesh = spec_of(*t)->mesh();
    if (!mesh_.defined()) mesh_ = mesh;
    if (mesh != mesh_) return nullptr;
  }
  CallContext context;
  if (mutable_layout) context.mutable_layouts.push_back(0);
  note_context(element_, {tensors.data(), tensors.size()}, context);
  CacheKey key;
  begin_key(key, element_, *resolved_);
  context.append_to_key(key);
  for (size_t i = 0, k = 0; i < element_.args.size(); ++i) {
    if (element_.args[i].kind == ArgSlot::Kind::kTensor) {
      key.push_back(spec_of(*tensors[k++])->id());
    } else {
      const c10::IValue& value = i < args_.size() ? args_[i][n] : *element_.op.schema().arguments()[i].default_value();
      append_argument(key, *resolved_, i, value);
    }
  }
  return strategy_cache(mesh_.world()).find_direct(key);
}

bool ListCall::decide(size_t n) {
  const Tensors tensors = tensors_of(n);
  if (tensors.empty()) return false;
  CacheKey key;
  bool has_module_traits = false;
  for (const at::Tensor* t : tensors) {
    const DTensorMeta& meta = meta_without_sync(*t);
    // The first write to a tensor from a factory changes hints of later calls.
    if (is_special(meta) || (writes_ && is_unwritten_factory_result(*t))) return false;
    has_module_traits |= meta.storage->module_traits != nullptr;
    key.push_back(meta.spec->id());
    key.push_back(hints_of(*t));
  }
  const bool mutable_layout = writes_ && has_own_mutable_layout(tensors);
  key.push_back(mutable_layout);
  for (size_t a = 0; a < args_.size(); ++a) {
    if (element_.args[a].kind == ArgSlot::Kind::kStatic && args_[a].step > 0)
      append_argument(key, *resolved_, a, args_[a][n]);
  }
  if (has_module_traits) check_hooks(tensors);
  std::shared_ptr<const Decision>& decision = known_[key];
  if (!decision) decision = find_decision(n, tensors, mutable_layout);
  decisions_.push_back(decision.get());
  return decision != nullptr;
}

bool ListCall::decide() {
  resolved_ = &element_.resolve();
  if (element_.handler != nullptr || !resolved_->rule || calls_are_decided_otherwise() || !read_lists()) return false;
  writes_ = element_.args[first_tensor_].written;
  if (writes_ && CallHook::watching() != nullptr) return false;
  if (resolved_->rule->uses_gradient_target && in_backward()) return false;
  decisions_.reserve(count_);
  for (size_t n = 0; n < count_; ++n) {
    if (!decide(n)) return false;
  }
  // Kernels of a device may compute the tensors of a list at the same time.
  return !writes_ || first_tensor(0).is_cpu() || !writes_one_memory_twice();
}

bool ListCall::writes_one_memory_twice() const {
  absl::flat_hash_set<const LocalStorage*> written;
  for (size_t n = 0; n < count_; ++n) {
    if (!written.insert(meta_without_sync(first_tensor(n)).storage.get()).second) return true;
  }
  return false;
}

// The arguments of `op` on local rank r.
Stack ListCall::local_arguments(size_t r) const {
  Stack stack;
  for (size_t a = 0; a < args_.size(); ++a) {
    if (element_.args[a].kind != ArgSlot::Kind::kTensor) {
      stack.push_back(op_args_[a]);
    } else if (args_[a].step == 0) {
      stack.emplace_back(meta_without_sync(args_[a][0].toTensor()).locals[r]);
    } else {
      c10::List<at::Tensor> list;
      list.reserve(count_);
      for (size_t n = 0; n < count_; ++n) list.push_back(meta_without_sync(args_[a][n].toTensor()).locals[r]);
      stack.emplace_back(std::move(list));
    }
  }
  return stack;
}

void ListCall::note_writes() const {
  for (size_t n = 0; writes_ && n < count_; ++n) mark_written(*meta_without_sync(first_tensor(n)).storage);
}

// As if `element` had run for one tensor of the lists after the other.
void ListCall::report_works() const {
  if (current_scope().listeners.empty()) return;
  const auto& defaults = element_.op.schema().arguments();
  for (size_t n = 0; n < count_; ++n) {
    Inputs in;
    in.mesh = mesh_;
    std::vector<c10::IValue> args;
    for (size_t a = 0; a < element_.args.size(); ++a) {
      args.push_back(a < args_.size() ? args_[a][n] : *defaults[a].default_value());
      ArgSlot& slot = in.slots.emplace_back();
      if (element_.args[a].kind != ArgSlot::Kind::kTensor || !args.back().isTensor()) continue;
      slot = {ArgSlot::Kind::kTensor, static_cast<int>(in.tensors.size()), 1};
      in.tensors.push_back(args.back().toTensor());
      in.args.push_back(static_cast<uint16_t>(a));
    }
    report_work(element_, *decisions_[n], in, args, static_cast<int64_t>(n));
  }
}

Stack ListCall::run() const {
  std::vector<RankTensors> locals(writes_ ? 0 : count_);
  try {
    LocalGuard guard;
    for (size_t r = 0; r < mesh_.local_ranks().size(); ++r) {
      Stack stack = local_arguments(r);
      op_.op.callBoxed(stack);
      for (size_t n = 0; n < locals.size(); ++n) locals[n].push_back(stack[0].toListRef()[n].toTensor());
    }
  } catch (...) {
    note_writes();
    throw;
  }
  note_writes();
  report_works();
  if (writes_) return {};
  c10::List<at::Tensor> results;
  results.reserve(count_);
  for (size_t n = 0; n < count_; ++n)
    results.push_back(make_result_of(first_tensor(n), decisions_[n]->outputs[0], std::move(locals[n])));
  return {std::move(results)};
}

}  // namespace

bool run_on_local_lists(const OpInfo& op, const OpInfo& element, Stack& stack) {
  Stack results;
  {
    ListCall call(op, element, torch::jit::last(stack, op.args.size()));
    if (!call.decide()) return false;
    results = call.run();
  }
  torch::jit::drop(stack, op.args.size());
  for (c10::IValue& result : results) stack.push_back(std::move(result));
  return true;
}

}  // namespace dtensor::internal
