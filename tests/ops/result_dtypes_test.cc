// Results have the dtypes of plain ATen: for every elementwise operator and reduction, over pairs of dtypes, with
// tensors, 0-dim tensors and numbers.
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>

#include <set>

#include "absl/cleanup/cleanup.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/tensor/representation.h"
#include "propagation/rule_registry.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using at::ScalarType;
using Values = std::vector<c10::IValue>;

constexpr ScalarType kResultTypes[] = {at::kBool,  at::kByte,   at::kInt,         at::kHalf,
                                       at::kFloat, at::kDouble, at::kComplexFloat};

// The operand next to the first tensor, of [2, 3].
enum class Shape { kSame, kNoDims, kFirstHasNone, kNumber };

at::Tensor tensor_of(ScalarType type, bool dims) {
  return at::ones(dims ? std::vector<int64_t>{2, 3} : std::vector<int64_t>{}, type);
}

// nullopt: an argument for which no value is defined here.
std::optional<Values> arguments_of(const c10::FunctionSchema& schema, ScalarType first, ScalarType second, Shape shape,
                                   const at::Scalar& number, bool& uses_second) {
  Values args;
  int tensors = 0;
  for (const auto& argument : schema.arguments()) {
    const auto kind = argument.type()->kind();
    if (kind == c10::TypeKind::TensorType) {
      if (tensors++ == 0) {
        args.emplace_back(tensor_of(first, shape != Shape::kFirstHasNone));
        continue;
      }
      uses_second = true;
      at::Tensor t = tensor_of(second, shape == Shape::kSame || shape == Shape::kFirstHasNone);
      if (shape == Shape::kNumber && tensors == 2) t.unsafeGetTensorImpl()->set_wrapped_number(true);
      args.emplace_back(t);
    } else if (kind == c10::TypeKind::NumberType) {
      args.emplace_back(number);
    } else if (argument.default_value()) {
      args.push_back(*argument.default_value());
    } else if (kind == c10::TypeKind::OptionalType) {
      args.emplace_back();
    } else if (kind == c10::TypeKind::IntType) {
      args.emplace_back(0);
    } else if (kind == c10::TypeKind::FloatType) {
      args.emplace_back(0.5);
    } else if (kind == c10::TypeKind::BoolType) {
      args.emplace_back(true);
    } else if (kind == c10::TypeKind::ListType && *argument.type() == *c10::ListType::ofInts()) {
      args.emplace_back(c10::List<int64_t>({0}));
    } else {
      return std::nullopt;
    }
  }
  return args;
}

bool functional(const c10::FunctionSchema& schema) {
  for (const auto& a : schema.arguments()) {
    if (a.alias_info() != nullptr || a.is_out()) return false;
  }
  for (const auto& r : schema.returns()) {
    if (r.type()->kind() != c10::TypeKind::TensorType) return false;
  }
  return !schema.returns().empty() && !schema.arguments().empty() &&
         schema.arguments()[0].type()->kind() == c10::TypeKind::TensorType;
}

// Elementwise operators and reductions, by ATen's tags or among the library's own rules.
std::vector<c10::OperatorHandle> elementwise_and_reductions() {
  std::set<std::string> names;
  for (const RuleRegistry::Entry& entry : RuleRegistry::instance().entries()) {
    if (entry.kind == RuleRegistry::Entry::Kind::kRule) names.insert(entry.op.substr(0, entry.op.find('.')));
  }
  std::vector<c10::OperatorHandle> result;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findOp(name);
    if (!op || !op->hasSchema() || name.name.rfind("aten::", 0) != 0 || !functional(op->schema())) continue;
    // Operators that accept any sizes, or any indices, unchecked.
    const std::set<std::string> credulous = {"aten::_reshape_alias_copy", "aten::_pdist_backward", "aten::lu_unpack"};
    if (credulous.count(name.name)) continue;
    if (op->hasTag(at::Tag::nondeterministic_seeded) || name.name.find("_foreach") != std::string::npos) continue;
    const auto& info = op_info(*op);
    if (info.handler != nullptr && name.name != "aten::norm" && name.name != "aten::linalg_vector_norm" &&
        name.name != "aten::dist")
      continue;
    if (op->hasTag(at::Tag::pointwise) || op->hasTag(at::Tag::reduction) || names.count(name.name) ||
        name.name == "aten::ldexp") {
      result.push_back(*op);
    }
  }
  return result;
}

std::vector<at::Tensor> run(const c10::OperatorHandle& op, Values args) {
  torch::jit::Stack stack = std::move(args);
  op.callBoxed(stack);
  std::vector<at::Tensor> results;
  for (const auto& value : stack) results.push_back(value.toTensor());
  return results;
}

}  // namespace

TEST_CASE("Results have ATen's dtypes", "[result_dtypes]") {
  const DeviceMesh mesh(World::local(2), {2}, {"d"});
  std::set<std::string> wrong;
  int64_t compared = 0;
  const auto compare = [&](const c10::OperatorHandle& op, const Values& args, const std::string& label) {
    std::vector<at::Tensor> expected;
    try {
      LocalGuard guard;
      expected = run(op, args);
    } catch (const std::exception&) {
      return;  // ATen rejects it
    }
    Values distributed;
    bool first = true;
    for (const auto& value : args) {
      const bool plain = !value.isTensor() || value.toTensor().unsafeGetTensorImpl()->is_wrapped_number();
      if (plain) {
        distributed.push_back(value);
      } else {
        const at::Tensor t = value.toTensor();
        distributed.emplace_back(lay_out(t, mesh, {first && t.dim() > 0 ? Shard(0) : Replicate()}));
        first = false;
      }
    }
    ++compared;
    std::string problem;
    try {
      const auto got = run(op, distributed);
      for (size_t k = 0; k < got.size() && problem.empty(); ++k) {
        if (!got[k].defined() || !expected[k].defined()) continue;
        if (got[k].scalar_type() != expected[k].scalar_type())
          problem = c10::str(got[k].scalar_type(), " instead of ", expected[k].scalar_type());
        if (!is_dtensor(got[k])) continue;
        for (const auto& local : meta_for_read(got[k]).locals) {
          if (local.scalar_type() != got[k].scalar_type()) problem = c10::str("locals of ", local.scalar_type());
        }
      }
    } catch (const c10::NotImplementedError&) {
      return;  // rejected by name
    } catch (const std::exception& e) {
      problem = std::string(e.what()).substr(0, 400);
    }
    if (!problem.empty()) wrong.insert(label + ": " + problem);
  };
  for (const auto& op : elementwise_and_reductions()) {
    for (const ScalarType first : kResultTypes) {
      for (const ScalarType second : kResultTypes) {
        bool uses_second = false, known = true;
        for (const Shape shape : {Shape::kSame, Shape::kNoDims, Shape::kFirstHasNone, Shape::kNumber}) {
          for (const at::Scalar& number : {at::Scalar(2), at::Scalar(1.5), at::Scalar(true)}) {
            if (second != at::kBool && !number.isIntegral(false)) continue;  // the other dtype has no effect there
            const auto args = arguments_of(op.schema(), first, second, shape, number, uses_second);
            known = args.has_value();
            if (!known || (!uses_second && shape != Shape::kSame && shape != Shape::kFirstHasNone)) break;
            const bool is_number = second == at::kBool || second == at::kInt || second == at::kDouble;
            if (shape == Shape::kNumber && (!uses_second || !is_number)) break;
            // A gradient of another shape than the output's is invalid.
            if (shape != Shape::kSame && op.schema().name().find("_backward") != std::string::npos) continue;
            if (op.schema().name() == "aten::_cdist_backward") continue;  // its outputs are square, none of these is
            compare(op, *args,
                    c10::str(op_info(op).name, " ", first, " beside ", second, " form ", static_cast<int>(shape),
                             " number ", number));
          }
        }
        if (!known || !uses_second) break;
      }
    }
  }
  std::string text;
  int shown = 0;
  for (const auto& line : wrong) {
    if (++shown <= 60) text += line + "\n";
  }
  INFO(wrong.size() << " wrong of " << compared << ":\n" << text);
  CHECK(wrong.empty());
  CHECK(compared > 10000);
}

TEST_CASE("A decision that fails its own check is not cached", "[result_dtypes]") {
  const OpRule right =
      *RuleRegistry::instance().find(c10::Dispatcher::singleton().findSchemaOrThrow("aten::special_bessel_j1", ""));
  const absl::Cleanup restore = [&] { RuleRegistry::instance().add("aten::special_bessel_j1", right); };
  OpRule wrong = right;
  wrong.metas = [](const OpCall& call) {
    TensorMeta meta = call.inputs[0]->meta();
    meta.dtype = at::kInt;
    return OutputMetas{{meta}, {-1}, {}};
  };
  RuleRegistry::instance().add("aten::special_bessel_j1", wrong);
  const DeviceMesh mesh(World::local(2), {2}, {"d"});
  const at::Tensor x = lay_out(at::ones({4}, at::kDouble), mesh, {Shard(0)});
  for (int turn = 0; turn < 3; ++turn) {
    CHECK_THROWS_WITH(call_op("aten::special_bessel_j1", {x}), Catch::Contains("The rule of this operator is wrong"));
  }
}

}  // namespace dtensor::testing
