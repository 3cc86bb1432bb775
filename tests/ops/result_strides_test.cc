// Results have the strides of plain ATen, for any strides of the arguments: as_strided() and view() depend on them.
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>

#include <set>

#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/representation.h"
#include "propagation/op_rule.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"
#include "tests/testing/long_tests.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Values = std::vector<c10::IValue>;

// A memory layout of a tensor.
enum class Memory { kRowMajor, kReversed, kSwapped, kExpanded, kStepped };
constexpr Memory kMemories[] = {Memory::kRowMajor, Memory::kReversed, Memory::kSwapped, Memory::kExpanded,
                                Memory::kStepped};

// A tensor of 3 dims of those sizes, viewed in `base`, which memory_for() made.
at::Tensor seen(const at::Tensor& base, Memory memory) {
  switch (memory) {
    case Memory::kReversed:
      return base.permute({2, 1, 0});
    case Memory::kSwapped:
      return base.permute({1, 0, 2});
    case Memory::kExpanded:
      return base.expand({base.size(0), 3, base.size(2)});
    case Memory::kStepped:
      return base.slice(2, 0, c10::nullopt, 2);
    default:
      return base;
  }
}

at::Tensor memory_for(Memory memory, c10::ScalarType dtype) {
  const std::vector<int64_t> sizes = memory == Memory::kReversed   ? std::vector<int64_t>{4, 3, 2}
                                     : memory == Memory::kSwapped  ? std::vector<int64_t>{3, 2, 4}
                                     : memory == Memory::kExpanded ? std::vector<int64_t>{2, 1, 4}
                                     : memory == Memory::kStepped  ? std::vector<int64_t>{2, 3, 8}
                                                                   : std::vector<int64_t>{2, 3, 4};
  return at::arange(1, c10::multiply_integers(sizes) + 1, at::kDouble).view(sizes).to(dtype);
}

at::Tensor numbers(const std::vector<int64_t>& sizes) {
  return at::arange(1, c10::multiply_integers(sizes) + 1, at::kDouble).view(sizes);
}

// Arguments of a call, with each tensor's memory and its view.
struct Call {
  c10::OperatorHandle op;
  Values args;
  std::vector<std::optional<Memory>> seen_as;  // per argument; nullopt: no view
};

std::string to_string(const Call& call) {
  std::string text = op_info(call.op).name;
  for (size_t a = 0; a < call.args.size(); ++a) {
    if (call.args[a].isTensor())
      text += c10::str(" ", call.args[a].toTensor().scalar_type(),
                       static_cast<int>(call.seen_as[a].value_or(Memory::kRowMajor)));
  }
  return text;
}

std::vector<at::Tensor> run(const Call& call, const DeviceMesh* mesh, const Placement& placement) {
  torch::jit::Stack stack;
  for (size_t a = 0; a < call.args.size(); ++a) {
    stack.push_back(call.args[a]);
    if (!call.args[a].isTensor()) continue;
    const at::Tensor t = call.args[a].toTensor();
    const at::Tensor laid_out = mesh == nullptr   ? t
                                : call.seen_as[a] ? lay_out(t, *mesh, {placement})
                                                  : lay_out(t, *mesh, {Replicate()});
    stack.back() = call.seen_as[a] ? seen(laid_out, *call.seen_as[a]) : laid_out;
  }
  call.op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const auto& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
  }
  return results;
}

// nullopt: an argument for which no value is defined here.
std::optional<Call> call_of(const c10::OperatorHandle& op, Memory first, Memory second, c10::ScalarType dtype) {
  Call call{op, {}, {}};
  bool any = false;
  for (const auto& argument : op.schema().arguments()) {
    const auto kind = argument.type()->kind();
    call.seen_as.emplace_back();
    if (kind == c10::TypeKind::TensorType) {
      const bool indices = argument.name() == "index" || argument.name() == "indices";
      const bool truths = argument.name() == "condition" || argument.name() == "mask";
      call.seen_as.back() = any ? second : first;
      any = true;
      const at::Tensor memory = memory_for(*call.seen_as.back(), dtype);
      call.args.emplace_back(indices ? memory.to(at::kLong).remainder(2) : truths ? memory.to(at::kBool) : memory);
    } else if (kind == c10::TypeKind::NumberType || kind == c10::TypeKind::FloatType) {
      call.args.emplace_back(0.5);
    } else if (argument.name() == "reduction") {
      call.args.emplace_back(0);
    } else if (argument.default_value()) {
      call.args.push_back(*argument.default_value());
    } else if (kind == c10::TypeKind::OptionalType) {
      call.args.emplace_back();
    } else if (kind == c10::TypeKind::IntType) {
      call.args.emplace_back(1);
    } else if (kind == c10::TypeKind::BoolType) {
      call.args.emplace_back(false);
    } else if (kind == c10::TypeKind::ListType && *argument.type() == *c10::ListType::ofInts()) {
      call.args.emplace_back(c10::List<int64_t>({1}));
    } else {
      return std::nullopt;
    }
  }
  return any ? std::optional(call) : std::nullopt;
}

// Operators with a rule or a handler that return new tensors.
std::vector<c10::OperatorHandle> operators_of_new_tensors() {
  std::vector<c10::OperatorHandle> result;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0) continue;
    bool fresh =
        !op->schema().returns().empty() && op->schema().returns()[0].type()->kind() == c10::TypeKind::TensorType;
    for (const auto& a : op->schema().arguments()) fresh = fresh && a.alias_info() == nullptr;
    // Random numbers; uninitialized memory; operators that accept any sizes or trust their arguments.
    for (const char* other : {"empty", "rand", "_reshape_alias_copy", "batch_norm", "_efficient", "_flash",
                              "group_norm", "backward", "_foreach", "_fused", "_thnn", "mkldnn", "_pdist"}) {
      fresh = fresh && name.name.find(other) == std::string::npos;
    }
    if (!fresh || op->hasTag(at::Tag::nondeterministic_seeded)) continue;
    const auto& info = op_info(*op);
    if (info.handler != nullptr || info.rule()) result.push_back(*op);
  }
  return result;
}

// The stride of a dim of one element does not count.
bool same_steps(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim() && a.numel() > 0; ++d) {
    if (a.size(d) > 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

class Comparison {
 public:
  void compare(const Call& call) {
    std::vector<at::Tensor> expected;
    try {
      LocalGuard guard;
      expected = run(call, nullptr, Replicate());
    } catch (const std::exception&) {
      return;  // ATen rejects it
    }
    for (const Placement& placement : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(2))}) {
      std::vector<at::Tensor> actual;
      try {
        actual = run(call, &mesh_, placement);
      } catch (const c10::NotImplementedError&) {
        continue;  // rejected by name
      } catch (const std::exception& e) {
        wrong_.insert(c10::str(to_string(call), " ", placement, ": ", std::string(e.what()).substr(0, 300)));
        continue;
      }
      ++compared_;
      for (size_t k = 0; k < std::min(actual.size(), expected.size()); ++k) {
        if (!actual[k].defined() || !expected[k].defined()) continue;
        if (actual[k].sizes() == expected[k].sizes() && same_steps(actual[k], expected[k])) continue;
        wrong_.insert(c10::str(to_string(call), " ", placement, ": result ", k, " of ", expected[k].sizes(),
                               " has strides ", actual[k].strides(), ", should have ", expected[k].strides()));
      }
    }
  }

  void check() const {
    std::string text;
    int shown = 0;
    for (const auto& line : wrong_) {
      if (++shown <= 60) text += line + "\n";
    }
    INFO(wrong_.size() << " wrong of " << compared_ << ":\n" << text);
    CHECK(wrong_.empty());
  }

  int64_t compared() const { return compared_; }

 private:
  const DeviceMesh mesh_{World::local(2), {2}, {"d"}};
  std::set<std::string> wrong_;
  int64_t compared_ = 0;
};

// Calls whose arguments depend on one another. Tensors of 3 dims have every memory layout.
std::vector<std::pair<std::string, Values>> rows() {
  const auto x = memory_for(Memory::kRowMajor, at::kDouble), m = x.select(0, 0).t();
  const c10::IValue none;
  const c10::List<int64_t> outer({2, 0}), one({1});
  std::vector<std::pair<std::string, Values>> all;
  for (int64_t k = -1; k < 4; ++k) all.push_back({"aten::rot90", {x, k, outer}});
  for (const c10::List<int64_t>& dims : {one, c10::List<int64_t>({0, 1})}) {
    all.push_back({"aten::roll", {x, dims, dims}});
    all.push_back({"aten::flip", {x, dims}});
  }
  all.push_back({"aten::roll", {x, one, c10::List<int64_t>()}});
  all.push_back({"aten::constant_pad_nd", {x, c10::List<int64_t>({1, 0, 0, 2}), 0}});
  all.push_back({"aten::unfold_backward", {numbers({2, 2, 4, 2}), c10::List<int64_t>({2, 3, 4}), 1, 2, 1}});
  all.push_back({"aten::index_select", {x, 1, at::tensor({2, 0}, at::kLong)}});
  all.push_back({"aten::take", {x, at::tensor({5, 0}, at::kLong)}});
  all.push_back({"aten::native_layer_norm", {x, c10::List<int64_t>({4}), none, none, 1e-5}});
  all.push_back({"aten::native_group_norm", {x, none, none, 2, 3, 4, 1, 1e-5}});
  all.push_back({"aten::bmm", {x, numbers({2, 4, 5})}});
  all.push_back({"aten::addbmm", {numbers({3, 5}), x, numbers({2, 4, 5})}});
  all.push_back({"aten::mm", {m, numbers({3, 5})}});
  all.push_back({"aten::embedding", {m, at::tensor({2, 0}, at::kLong)}});
  all.push_back({"aten::binary_cross_entropy_with_logits", {x, x, none, none, 0}});
  return all;
}

}  // namespace

TEST_CASE("Results have ATen's strides for dependent arguments", "[result_strides]") {
  Comparison comparison;
  for (const auto& [name, args] : rows()) {
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), "");
    for (const Memory memory : kMemories) {
      Call call{op, args, std::vector<std::optional<Memory>>(op.schema().arguments().size())};
      for (size_t a = call.args.size(); a < op.schema().arguments().size(); ++a)
        call.args.push_back(*op.schema().arguments()[a].default_value());
      for (size_t a = 0; a < args.size(); ++a) {
        if (!args[a].isTensor() || args[a].toTensor().sizes() != at::IntArrayRef({2, 3, 4})) continue;
        call.args[a] = memory_for(memory, at::kDouble);
        call.seen_as[a] = memory;
      }
      comparison.compare(call);
    }
  }
  comparison.check();
  CHECK(comparison.compared() > 200);
}

// In the short form an operator has two of the dtypes.
TEST_CASE("Results have ATen's strides", "[result_strides]") {
  Comparison comparison;
  const std::vector<c10::ScalarType> others = {at::kComplexDouble, at::kLong, at::kBool};
  size_t number = 0;
  for (const auto& op : operators_of_new_tensors()) {
    std::vector<c10::ScalarType> dtypes = {at::kDouble, others[number++ % others.size()]};
    if (long_tests()) dtypes = {at::kDouble, at::kComplexDouble, at::kLong, at::kBool};
    for (const c10::ScalarType dtype : dtypes) {
      for (const Memory first : kMemories) {
        for (const Memory second : kMemories) {
          const auto call = call_of(op, first, second, dtype);
          if (!call) break;
          comparison.compare(*call);
          const auto tensors =
              std::count_if(call->args.begin(), call->args.end(), [](const auto& a) { return a.isTensor(); });
          if (tensors < 2) break;
        }
      }
    }
  }
  comparison.check();
  CHECK(comparison.compared() > (long_tests() ? 10000 : 4000));
}

}  // namespace dtensor::testing
