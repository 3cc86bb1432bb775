#include "dtensor/dispatch/list_call.h"

#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "comm/scope.h"
#include "dtensor/dispatch/call_hook.h"
#include "dtensor/dispatch/internal/call_hints.h"
#include "dtensor/dispatch/internal/call_inputs.h"
#include "dtensor/dispatch/internal/decide_call.h"
#include "dtensor/dispatch/internal/direct_call.h"
#include "dtensor/dispatch/internal/module_call.h"
#include "dtensor/dispatch/report_work.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/tensor/each_rank.h"
#include "propagation/decision.h"
#include "propagation/strategy_cache.h"

namespace dtensor::internal {
namespace {

static_assert(alignof(Spec) > kAllFacts);  // so that a word has both the address of a spec and facts

}  // namespace

void ListCall::add(c10::ArrayRef<at::Scalar> numbers) {
  args_.push_back({.values = std::vector<c10::IValue>(numbers.begin(), numbers.end()), .count = numbers.size()});
}

void ListCall::prepare_parameters() const {
  for (const Argument& arg : args_) {
    if (arg.tensors == nullptr) continue;
    for (size_t n = 0; n < (arg.count == kNoList ? 1 : arg.count); ++n) {
      if (is_dtensor(arg.tensors[n])) prepare_parameter(op_, arg.tensors[n]);
    }
  }
}

bool ListCall::read_arguments() {
  bool any = false;
  for (const Argument& arg : args_) {
    if (arg.count == kNoList) continue;
    if (arg.count == 0 || (any && arg.count != count_)) return false;
    count_ = arg.count;
    any = true;
  }
  for (size_t a = 0; a < args_.size(); ++a) {
    const bool is_absent = args_[a].tensors == nullptr && element_.args[a].kind != ArgSlot::Kind::kStatic;
    if (is_absent) return false;
  }
  for (size_t a = args_.size(); a-- > 0;) {
    if (args_[a].tensors == nullptr) continue;
    first_tensor_ = a;
    ++num_tensors_;
  }
  return any && num_tensors_ > 0;
}

void ListCall::check_hooks() const {
  for (size_t n = 0; n < count_; ++n) {
    const Tensors tensors = tensors_of(n);
    const auto has_traits = [](const at::Tensor* t) {
      return meta_without_sync(*t).storage->parameter->traits != nullptr;
    };
    if (std::none_of(tensors.begin(), tensors.end(), has_traits)) continue;
    Inputs in;
    for (size_t a = 0; a < args_.size(); ++a) {
      if (element_.args[a].kind != ArgSlot::Kind::kTensor) continue;
      in.tensors.push_back(*tensors[in.tensors.size()]);
      in.arg_of.push_back(static_cast<uint16_t>(a));
    }
    check_hooks_ran(element_, in);
  }
}

std::shared_ptr<const Decision> ListCall::find_decision(size_t n) {
  const Tensors tensors = tensors_of(n);
  for (const at::Tensor* t : tensors) {
    const DeviceMesh& mesh = spec_of(*t)->mesh();
    if (!mesh_.defined()) mesh_ = mesh;
    if (mesh != mesh_) return nullptr;
  }
  CallKey key(element_);
  const bool scoped = c10::ThreadLocalDebugInfo::current() != nullptr;
  append_hints(key.words, element_, {tensors.data(), tensors.size()}, kAllFacts, writes_, scoped);
  for (size_t i = 0, k = 0; i < element_.args.size(); ++i) {
    if (element_.args[i].kind == ArgSlot::Kind::kTensor) {
      key.words.push_back(spec_of(*tensors[k++])->id());
    } else {
      key.add(i, i < args_.size() ? args_[i].value_of(n) : *element_.op.schema().arguments()[i].default_value());
    }
  }
  return strategy_cache(mesh_.world()).find_direct(key.words);
}

ListCall::Tensors ListCall::tensors_of(size_t n) const {
  Tensors tensors;
  for (const Argument& arg : args_) {
    if (arg.tensors != nullptr) tensors.push_back(&arg.tensor(n));
  }
  return tensors;
}

bool ListCall::read_tensors(size_t a, size_t i) {
  Argument& arg = args_[a];
  arg.parts.resize(arg.count == kNoList ? 1 : count_);
  for (size_t n = 0; n < count_; ++n) {
    const at::Tensor& t = arg.tensor(n);
    if (!is_dtensor(t)) return false;
    const DTensorMeta& meta = meta_without_sync(t);
    const uint64_t facts = facts_of(meta);
    // The first write to a tensor from a factory changes hints of later calls.
    if (needs_boxed_kernel(meta) || (writes_ && (facts & kIsFactoryResult) != 0)) return false;
    has_module_traits_ |= meta.storage->parameter->traits != nullptr;
    arg.parts[arg.count == kNoList ? 0 : n] = meta.locals.data();
    uint64_t* const words = &words_[n * num_tensors_];
    words[i] = reinterpret_cast<uintptr_t>(meta.spec.get()) | facts;
    if (i == 0) {
      firsts_[n] = meta.storage.get();
      if (writes_ && meta.laid_out_by_engine && has_mutable_layout(t)) words[0] |= kHasMutableLayout;
    }
  }
  return true;
}

bool ListCall::find_decisions() {
  absl::flat_hash_map<CacheKey, const Decision*, CacheKeyHash> known;
  CallKey key(element_);
  for (size_t n = 0; n < count_; ++n) {
    key.words.assign(words_.begin() + static_cast<std::ptrdiff_t>(n * num_tensors_),
                     words_.begin() + static_cast<std::ptrdiff_t>((n + 1) * num_tensors_));
    for (size_t a = 0; a < args_.size(); ++a) {
      const Argument& arg = args_[a];
      if (arg.tensors == nullptr && arg.count != kNoList) key.add(a, arg.values[n]);
    }
    const Decision*& decision = known[key.words];
    if (decision == nullptr) {
      kept_.push_back(find_decision(n));
      decision = kept_.back().get();
    }
    if (decision == nullptr) return false;
    decisions_[n] = decision;
  }
  return true;
}

bool ListCall::decide() {
  const std::shared_ptr<const OpRule>& rule = element_.rule();
  if (element_.handler != nullptr || !rule || calls_are_decided_otherwise() || !read_arguments()) return false;
  writes_ = element_.args[first_tensor_].written;
  if (writes_ && CallHook::watching() != nullptr) return false;
  if (rule->uses_gradient_target && in_backward()) return false;
  words_.resize(count_ * num_tensors_);
  firsts_.resize(count_);
  decisions_.resize(count_);
  for (size_t a = 0, i = 0; a < args_.size(); ++a) {
    if (args_[a].tensors != nullptr && !read_tensors(a, i++)) return false;
  }
  if (has_module_traits_) check_hooks();
  if (!find_decisions()) return false;
  // Kernels of a device may compute the tensors of a list at the same time.
  return !writes_ || first_tensor(0).is_cpu() || !writes_one_memory_twice();
}

bool ListCall::writes_one_memory_twice() const {
  return absl::flat_hash_set<const LocalStorage*>(firsts_.begin(), firsts_.end()).size() < count_;
}

BorrowedTensors ListCall::local_list(size_t a, size_t r) const {
  BorrowedTensors list;
  list.reserve(count_);
  for (const at::Tensor* parts : args_[a].parts) list.add(parts[r]);
  return list;
}

void ListCall::note_writes() const {
  if (!writes_) return;
  for (LocalStorage* memory : firsts_) mark_written(*memory);
}

// As if `element` had run for one tensor of the lists after the other.
void ListCall::report_works() const {
  if (!has_listeners()) return;
  const auto& defaults = element_.op.schema().arguments();
  for (size_t n = 0; n < count_; ++n) {
    Inputs in;
    in.mesh = mesh_;
    std::vector<c10::IValue> args;
    for (size_t a = 0; a < element_.args.size(); ++a) {
      ArgSlot& slot = in.slots.emplace_back();
      if (a >= args_.size()) {
        args.push_back(*defaults[a].default_value());
      } else if (args_[a].tensors == nullptr) {
        args.push_back(args_[a].value_of(n));
      } else {
        slot = {ArgSlot::Kind::kTensor, static_cast<int>(in.tensors.size()), 1};
        in.tensors.push_back(args_[a].tensor(n));
        in.arg_of.push_back(static_cast<uint16_t>(a));
        args.emplace_back(args_[a].tensor(n));
      }
    }
    report_work(element_, *decisions_[n], in, args, static_cast<int64_t>(n));
  }
}

std::vector<at::Tensor> ListCall::run(const std::function<std::vector<at::Tensor>(size_t r)>& call_op) const {
  std::vector<RankTensors> locals(writes_ ? 0 : count_);
  try {
    LocalGuard guard;
    const size_t ranks = mesh_.local_ranks().size();
    for (RankTensors& result : locals) result.resize(ranks);
    const auto num_elements = [&] {
      int64_t num = 0;
      if (element_.one_rank_at_a_time) return num;
      for (const Argument& arg : args_) {
        for (const at::Tensor* parts : arg.parts) num += num_cpu_elements(parts[0]);
      }
      return num;
    };
    run_on_each_rank(ranks, num_elements, [&](size_t r) {
      std::vector<at::Tensor> of_rank = call_op(r);
      for (size_t n = 0; n < locals.size(); ++n) locals[n][r] = std::move(of_rank[n]);
    });
  } catch (...) {
    note_writes();
    throw;
  }
  note_writes();
  report_works();
  std::vector<at::Tensor> results;
  results.reserve(locals.size());
  for (size_t n = 0; n < locals.size(); ++n)
    results.push_back(make_result_of(first_tensor(n), SpecPtr(decisions_[n]->outputs[0]), std::move(locals[n])));
  return results;
}

bool run_on_local_lists(const OpInfo& op, const OpInfo& element, torch::jit::Stack& stack) {
  std::vector<at::Tensor> results;
  {
    const auto args = torch::jit::last(stack, op.args.size());
    std::deque<std::vector<at::Tensor>> lists;  // which `call` refers to
    ListCall call(op, element);
    for (const c10::IValue& value : args) {
      if (value.isTensorList()) {
        call.add(at::TensorList(lists.emplace_back(value.toTensorVector())));
      } else if (value.isTensor()) {
        call.add(value.toTensor());
      } else if (value.isList()) {
        call.add_values(value.toListRef());
      } else {
        call.add(value);
      }
    }
    if (!call.decide()) return false;
    results = call.run([&](size_t r) {
      torch::jit::Stack local(args.begin(), args.end());
      for (size_t a = 0; a < args.size(); ++a) {
        if (call.is_list(a) && args[a].isTensorList()) local[a] = at::TensorList(call.local_list(a, r));
        if (args[a].isTensor()) local[a] = call.local_tensor(a, r);
      }
      op.op.callBoxed(local);
      return local.empty() ? std::vector<at::Tensor>() : local[0].toTensorVector();
    });
  }
  torch::jit::drop(stack, op.args.size());
  if (!op.op.schema().returns().empty()) stack.emplace_back(std::move(results));
  return true;
}

}  // namespace dtensor::internal
