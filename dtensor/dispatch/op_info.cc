#include "dtensor/dispatch/op_info.h"

#include <mutex>
#include <string_view>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

// Operators that share memory with their first argument although their schemas do not declare it.
constexpr std::string_view kUnannotatedViews[] = {"aten::_unsafe_view", "aten::unsafe_split",
                                                  "aten::unsafe_split_with_sizes", "aten::unsafe_chunk", "aten::lift"};

// View operators whose local result is a view on every rank, whatever the strides of its part.
constexpr std::string_view kSharesAlways[] = {
    "aten::alias",     "aten::detach", "aten::diagonal", "aten::expand",           "aten::permute",
    "aten::select",    "aten::slice",  "aten::split",    "aten::squeeze",          "aten::t",
    "aten::transpose", "aten::unbind", "aten::unfold",   "aten::split_with_sizes", "aten::unsqueeze"};

// In-place operators that do not read the written argument.
constexpr std::string_view kOverwritesSelf[] = {"aten::fill_", "aten::zero_", "aten::copy_"};

}  // namespace

OpInfo::OpInfo(const c10::OperatorHandle& handle) : op(handle), name(c10::toString(handle.operator_name())) {
  const auto& schema = op.schema();
  bool any_tensor = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& a = schema.arguments()[i];
    Arg arg;
    arg.kind = ArgSlot::kind_of(*a.type());
    arg.written = a.alias_info() != nullptr && a.alias_info()->isWrite();
    arg.out = arg.written && a.is_out();
    has_outs |= arg.out;
    arg.overwritten = arg.out || (arg.written && absl::c_linear_search(kOverwritesSelf, schema.name()));
    any_tensor |= arg.kind != Arg::Kind::kStatic;
    if (a.name() == "device" && arg.kind == Arg::Kind::kStatic) device_arg = static_cast<int>(i);
    args.push_back(arg);
  }
  for (const auto& r : schema.returns()) {
    int written = -1;
    if (r.alias_info() && !r.alias_info()->beforeSets().empty()) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* alias = schema.arguments()[i].alias_info();
        if (alias && args[i].written && alias->beforeSets() == r.alias_info()->beforeSets())
          written = static_cast<int>(i);
      }
      if (written < 0) is_view = true;
    } else if (r.alias_info()) {  // for a list, such as the result of split(): Tensor(a)[]
      for (const auto& element : r.alias_info()->containedTypes()) is_view |= !element.beforeSets().empty();
    }
    written_inputs.push_back(written);
  }
  is_view = is_view || absl::c_linear_search(kUnannotatedViews, schema.name());
  one_rank_at_a_time = is_view || is_random(op);
  always_shares = is_view && absl::c_linear_search(kSharesAlways, schema.name());
  composite_implicit = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  makes_tensor =
      !any_tensor && schema.returns().size() == 1 && schema.returns()[0].type()->kind() == c10::TypeKind::TensorType;
  pointwise = op.hasTag(at::Tag::pointwise);
  const auto found = RuleRegistry::instance().find_handler(op);
  handler = found.handler;
  handles_uneven_only = found.uneven_only;
}

const OpInfo::Resolved& OpInfo::resolve_again() const {
  const RuleRegistry& rules = RuleRegistry::instance();
  static auto* mutex = new std::mutex;  // two threads would make two objects, whose calls would have different keys
  std::lock_guard lock(*mutex);
  const Resolved* current = resolved_.load(std::memory_order_relaxed);
  if (current != nullptr && current->generation == rules.generation()) return *current;
  auto fresh = std::make_unique<Resolved>();
  fresh->generation = rules.generation();  // before the rule: if one is added meanwhile, the next call looks again
  fresh->rule = rules.find(op);
  fresh->value_free.resize(args.size());
  fresh->divisor.resize(args.size());
  if (fresh->rule) {
    for (const auto& name : fresh->rule->value_free) {
      if (auto i = op.schema().argumentIndexWithName(name)) fresh->value_free[*i] = true;
    }
    for (const auto& name : fresh->rule->divisors) {
      if (auto i = op.schema().argumentIndexWithName(name)) fresh->divisor[*i] = true;
    }
  }
  resolved_.store(fresh.get(), std::memory_order_release);
  return *fresh.release();
}

const OpInfo& op_info(const c10::OperatorHandle& op) {
  thread_local absl::flat_hash_map<c10::OperatorHandle, const OpInfo*, std::hash<c10::OperatorHandle>> mine;
  if (auto it = mine.find(op); it != mine.end()) return *it->second;
  static auto* mutex = new std::mutex;
  static auto* all =
      new absl::flat_hash_map<c10::OperatorHandle, std::unique_ptr<OpInfo>, std::hash<c10::OperatorHandle>>;
  std::lock_guard lock(*mutex);
  auto& info = (*all)[op];
  if (!info) info = std::make_unique<OpInfo>(op);
  return *(mine[op] = info.get());
}

}  // namespace dtensor::internal
