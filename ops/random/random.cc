#include "ops/random/random.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include <cmath>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "dtensor/dispatch/op_info.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "ops/support/arguments.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

void check_floating(const at::Tensor& self, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(self.scalar_type()), "\"", name, "\" not implemented for '",
                              self.scalar_type(), "'");
}

RandomDraw uniform(const Arguments& args, const at::Tensor& self) {
  // Both parts of a complex number are uniform.
  if (!at::isComplexType(self.scalar_type())) check_floating(self, "uniform_");
  const double from = args["from"].isNone() ? 0 : args.number("from"), to = args["to"].isNone() ? 1 : args.number("to");
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from, " > to=", to);
  return {RandomKind::kUniform, from, to};
}

RandomDraw normal(const Arguments& args, const at::Tensor& self) {
  const bool complex = at::isComplexType(self.scalar_type());
  if (!complex) check_floating(self, "normal_");
  const double mean = args["mean"].isNone() ? 0 : args.number("mean"),
               std = args["std"].isNone() ? 1 : args.number("std");
  TORCH_CHECK(std >= 0, "normal expects std >= 0.0, but found std ", std);
  // The variance of a complex number is the sum of those of its parts.
  return {RandomKind::kNormal, mean, complex ? std / std::sqrt(2.0) : std};
}

RandomDraw log_normal(const Arguments& args, const at::Tensor& self) {
  check_floating(self, "log_normal_");
  TORCH_CHECK(args.number("std") > 0, "log_normal_ expects std > 0.0, but found std=", args.number("std"));
  return {RandomKind::kLogNormal, args.number("mean"), args.number("std")};
}

RandomDraw bernoulli(const Arguments& args, const at::Tensor&) {
  const double p = args.number("p");
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
  return {RandomKind::kBernoulli, p};
}

RandomDraw exponential(const Arguments& args, const at::Tensor& self) {
  check_floating(self, "exponential_");
  TORCH_CHECK(args.number("lambd") > 0, "exponential_ expects lambda > 0.0, but found lambda=", args.number("lambd"));
  return {RandomKind::kExponential, args.number("lambd")};
}

RandomDraw geometric(const Arguments& args, const at::Tensor&) {
  const double p = args.number("p");
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
  return {RandomKind::kGeometric, p};
}

RandomDraw cauchy(const Arguments& args, const at::Tensor& self) {
  check_floating(self, "cauchy_");
  TORCH_CHECK(args.number("sigma") > 0, "cauchy_ expects sigma > 0.0, but found sigma=", args.number("sigma"));
  return {RandomKind::kCauchy, args.number("median"), args.number("sigma")};
}

// The largest n such that the dtype represents all integers up to n.
int64_t max_integer(c10::ScalarType dtype) {
  int64_t max = 1;
  if (dtype == at::kBool) return max;
  AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "random_", [&] {
    if constexpr (std::is_integral_v<scalar_t>) {
      max = static_cast<int64_t>(std::numeric_limits<scalar_t>::max());
    } else {
      max = int64_t{1} << std::numeric_limits<scalar_t>::digits;
    }
  });
  return max;
}

RandomDraw integers(int64_t from, std::optional<int64_t> to, const at::Tensor& self) {
  RandomDraw draw{RandomKind::kInteger};
  draw.from = from;
  const int64_t max = max_integer(self.scalar_type());
  TORCH_CHECK(!to || from < *to, "random_ expects 'from' to be less than 'to', but got from=", from,
              " >= to=", to.value_or(0));
  TORCH_CHECK(from <= max && (!to || *to - 1 <= max), "random_: the range up to ", to.value_or(from),
              " is out of bounds for ", self.scalar_type());
  const uint64_t past = to ? static_cast<uint64_t>(*to) : static_cast<uint64_t>(max) + 1;
  draw.range = past - static_cast<uint64_t>(from);
  return draw;
}

RandomDraw random(const Arguments& args, const at::Tensor& self) {
  const auto to = args["to"].isNone() ? std::nullopt : std::optional(args["to"].toInt());
  return integers(args["from"].isNone() ? 0 : args["from"].toInt(), to, self);
}

RandomDraw randint(const Arguments& args, const at::Tensor& self) {
  TORCH_CHECK_NOT_IMPLEMENTED(args["high"].isInt(),
                              "randint_like with a tensor as bound is not supported on distributed tensors");
  return integers(args["low"].isNone() ? 0 : args["low"].toInt(), args["high"].toInt(), self);
}

bool has_data(const at::Tensor& t) { return spec_of(t)->mesh().world().has_data(); }

using Draw = RandomDraw (*)(const Arguments&, const at::Tensor&);

// Operators by name without a trailing '_'.
const absl::flat_hash_map<std::string, Draw>& draws() {
  static const auto* const table = new absl::flat_hash_map<std::string, Draw>{
      {"aten::uniform", uniform},       {"aten::normal", normal},       {"aten::normal_functional", normal},
      {"aten::log_normal", log_normal}, {"aten::bernoulli", bernoulli}, {"aten::exponential", exponential},
      {"aten::geometric", geometric},   {"aten::cauchy", cauchy},       {"aten::random", random},
      {"aten::rand_like", uniform},     {"aten::randn_like", normal},   {"aten::randint_like", randint}};
  return *table;
}

// The tensor that the operator fills: self, out, or a new tensor like self.
at::Tensor target(const c10::OperatorHandle& op, const Arguments& args, const at::Tensor& like) {
  if (op.schema().name().back() == '_') return args.tensor("self");
  if (const at::Tensor out = args.out(); out.defined()) return out;
  const auto optional = [&](const char* name) { return args[name]; };
  return at::empty_like(like, optional("dtype").toOptional<c10::ScalarType>(),
                        optional("layout").toOptional<c10::Layout>(), optional("device").toOptional<c10::Device>(),
                        optional("pin_memory").toOptional<bool>(),
                        optional("memory_format").toOptional<c10::MemoryFormat>());
}

void fill_op(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  std::string name = op.schema().name();
  if (name.back() == '_') name.pop_back();
  const at::Tensor self = args.tensor("self");
  const at::Tensor result = target(op, args, self);
  TORCH_CHECK(is_dtensor(result), op.operator_name(), ": the tensor to fill is plain, another argument distributed");
  const bool elementwise = name == "aten::bernoulli" && !args["p"].isDouble();
  const RandomDraw draw = elementwise ? RandomDraw() : draws().at(name)(args, result);
  if (has_data(result)) {
    const uint64_t key = draw_random_key(args.generator());
    if (elementwise) {
      fill_bernoulli(result, args["p"].isTensor() ? args.tensor("p") : self, key);
    } else {
      fill_random(result, draw, key);
    }
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(result);
}

// normal(mean, std) with tensors: z * std + mean.
void normal_of_tensors(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const auto& mean = args["mean"];
  const auto& std = args["std"];
  if (!mean.isTensor() && !std.isTensor()) {
    // normal(float, float, size): a factory.
    const at::Tensor out = args.out();
    TORCH_CHECK_NOT_IMPLEMENTED(out.defined() && is_dtensor(out), op.operator_name(),
                                ": not supported on distributed tensors");
    out.normal_(mean.toDouble(), std.toDouble(), args.generator());
    torch::jit::drop(stack, op.schema().arguments().size());
    return stack.push_back(out);
  }
  const at::Tensor shape = mean.isTensor() && std.isTensor() ? at::add(mean.toTensor(), std.toTensor())
                                                             : (mean.isTensor() ? mean : std).toTensor();
  at::Tensor z = at::empty_like(shape).normal_(0, 1, args.generator());
  z = std.isTensor() ? at::mul(z, std.toTensor()) : at::mul(z, std.toDouble());
  z = mean.isTensor() ? at::add(z, mean.toTensor()) : at::add(z, mean.toDouble());
  z = write_out(args.out(), z, op);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(z);
}

void native_dropout(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const double p = args.number("p");
  TORCH_CHECK(0 <= p && p <= 1, "dropout probability has to be between 0 and 1, but got ", p);
  const bool train = args["train"].isNone() || args["train"].toBool();
  const at::Tensor given = args.tensor("input");
  const at::Tensor input = redistribute_below_autograd(given, without_partials(spec_of(given)->placements()),
                                                       {"aten::native_dropout", "input", module_of_call(given), true});
  at::Tensor mask = at::empty_like(input, input.options().dtype(at::kBool)), output;
  if (train) {
    mask.bernoulli_(1 - p);
    output = at::mul(at::mul(input, mask), p == 1 ? 0.0 : 1 / (1 - p));
  } else {
    mask.fill_(true);
    output = input.clone();
  }
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(output);
  stack.emplace_back(mask);
}

}  // namespace

const RuleFamily random_rules("random", [](RuleRegistry& registry) {
  for (const auto& [name, draw] : draws()) {
    registry.add_handler(name, fill_op);
    registry.add_handler(absl::StrCat(name, "_"), fill_op);
  }
  registry.add_handler("aten::normal", normal_of_tensors);
  registry.add_handler("aten::native_dropout", native_dropout);
});

}  // namespace dtensor::internal
