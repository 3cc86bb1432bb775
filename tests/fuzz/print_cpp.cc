#include "tests/fuzz/print_cpp.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/print_cpp_parts.h"

namespace dtensor::fuzz {
namespace {

std::string number(double v) {
  if (std::isnan(v)) return "NAN";
  if (std::isinf(v)) return v > 0 ? "INFINITY" : "-INFINITY";
  return absl::StrFormat("%.17g", v);
}

std::string dtype_name(c10::ScalarType t) {
  return absl::StrCat("torch::k", t == c10::ScalarType::BFloat16 ? "BFloat16" : c10::toString(t));
}

std::string placement(const Placement& p) {
  static const char* const ops[] = {"kSum", "kAvg", "kProduct", "kMin", "kMax"};
  if (p.is_replicate()) return "Replicate()";
  if (p.is_shard()) return absl::StrCat("Shard(", p.dim(), ")");
  if (p.is_strided_shard()) return absl::StrCat("StridedShard(", p.dim(), ", ", p.split_factor(), ")");
  return p == Partial() ? "Partial()" : absl::StrCat("Partial(ReduceOp::", ops[static_cast<int>(p.reduce_op())], ")");
}

std::string layout(const Placements& placements) {
  return absl::StrCat(
      "{", absl::StrJoin(placements, ", ", [](std::string* out, const Placement& p) { *out += placement(p); }), "}");
}

std::string list(const std::vector<int64_t>& v) { return absl::StrCat("{", absl::StrJoin(v, ", "), "}"); }

// A plain tensor of those values.
std::string tensor(const at::Tensor& t) {
  const auto values = numbers(t);
  std::vector<int64_t> sizes = t.sizes().vec();
  if (t.is_complex()) sizes.push_back(2);
  std::string text = absl::StrCat("torch::tensor(std::vector<double>{",
                                  absl::StrJoin(values, ", ", [](std::string* out, double v) { *out += number(v); }),
                                  "}, torch::kDouble).view(std::vector<int64_t>", list(sizes), ")");
  if (t.is_complex()) text = absl::StrCat("torch::view_as_complex(", text, ")");
  return t.scalar_type() == at::kDouble ? text : absl::StrCat(text, ".to(", dtype_name(t.scalar_type()), ")");
}

// The type of the elements, and whether they are optional.
struct Type {
  explicit Type(c10::TypePtr t) : type(std::move(t)) {
    if (const auto inner = type->cast<c10::OptionalType>()) {
      optional = true;
      type = inner->getElementType();
    }
    if (const auto inner = type->cast<c10::ListType>()) element = inner->getElementType();
  }
  bool symbolic() const { return (element ? element : type)->kind() == c10::TypeKind::SymIntType; }
  bool scalar() const { return type->kind() == c10::TypeKind::NumberType; }
  c10::TypePtr type, element;
  bool optional = false;
};

struct Print {
  const Type& type;

  static std::string name(int id) { return id < 0 ? "std::nullopt" : absl::StrCat("t", id); }
  std::string wrapped(const std::string& text) const {
    if (type.scalar()) return absl::StrCat("at::Scalar(", text, ")");
    return type.symbolic() ? absl::StrCat("c10::SymInt(", text, ")") : text;
  }

  std::string operator()(std::monostate) const { return "std::nullopt"; }
  std::string operator()(bool b) const { return wrapped(b ? "true" : "false"); }
  std::string operator()(int64_t i) const { return wrapped(absl::StrCat("int64_t{", i, "}")); }
  std::string operator()(double d) const { return wrapped(absl::StrCat("double{", number(d), "}")); }
  std::string operator()(const std::string& s) const { return absl::StrCat("\"", s, "\""); }
  std::string operator()(c10::ScalarType t) const { return dtype_name(t); }
  std::string operator()(c10::MemoryFormat) const { return "at::MemoryFormat::Contiguous"; }
  std::string operator()(const TensorRef& t) const { return name(t.id); }
  std::string operator()(const std::vector<int64_t>& v) const {
    if (!type.symbolic()) return absl::StrCat("std::vector<int64_t>", list(v));
    return absl::StrCat(
        "std::vector<c10::SymInt>{",
        absl::StrJoin(v, ", ", [](std::string* out, int64_t i) { absl::StrAppend(out, "c10::SymInt(", i, ")"); }), "}");
  }
  std::string operator()(const std::vector<double>& v) const {
    if (type.element && type.element->kind() == c10::TypeKind::NumberType) {
      return absl::StrCat(
          "at::ArrayRef<at::Scalar>({",
          absl::StrJoin(v, ", ",
                        [](std::string* out, double d) { absl::StrAppend(out, "at::Scalar(", number(d), ")"); }),
          "})");
    }
    return absl::StrCat("std::vector<double>{",
                        absl::StrJoin(v, ", ", [](std::string* out, double d) { *out += number(d); }), "}");
  }
  std::string operator()(const std::vector<bool>& v) const {
    return absl::StrCat("std::array<bool, ", v.size(), ">{",
                        absl::StrJoin(v, ", ", [](std::string* out, bool b) { *out += b ? "true" : "false"; }), "}");
  }
  std::string operator()(const TensorRefs& refs) const {
    const bool optional = type.element && type.element->kind() == c10::TypeKind::OptionalType;
    return absl::StrCat(optional ? "c10::List<std::optional<at::Tensor>>({" : "at::TensorList({",
                        absl::StrJoin(refs.ids, ", ", [](std::string* out, int id) { *out += name(id); }), "})");
  }
};

std::string argument(const Argument& value, const c10::Argument& schema) {
  const Type type(schema.real_type());
  const std::string text = std::visit(Print{type}, value);
  if (!type.optional || std::holds_alternative<std::monostate>(value)) return text;
  if (std::holds_alternative<std::vector<double>>(value)) return absl::StrCat("at::ArrayRef<double>(", text, ")");
  if (!type.element) return text;
  if (!std::holds_alternative<std::vector<int64_t>>(value)) return text;
  return absl::StrCat(type.symbolic() ? "at::OptionalSymIntArrayRef(" : "at::OptionalIntArrayRef(", text, ")");
}

// One step, with names for its results; `known` are the tensors that it makes.
std::string statement(const Step& step, const std::map<int, at::Tensor>& known) {
  if (step.op == kRedistribute) {
    return absl::StrFormat("  at::Tensor t%d = moved(t%d, %s);\n  all.emplace_back(\"t%d\", t%d);\n", step.first_id,
                           std::get<TensorRef>(step.args[0]).id, layout(step.placements), step.first_id, step.first_id);
  }
  const size_t dot = step.op.find('.');
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
      step.op.substr(0, dot).c_str(), dot == std::string::npos ? "" : step.op.substr(dot + 1).c_str());
  const auto& schema = op.schema();
  std::vector<std::string> args;
  for (size_t a = 0; a < step.args.size(); ++a) args.push_back(argument(step.args[a], schema.arguments()[a]));
  const std::string call = absl::StrCat("at::_ops::", absl::StrReplaceAll(step.op.substr(6), {{".", "_"}}), "::call(",
                                        absl::StrJoin(args, ", "), ")");
  const auto& returns = schema.returns();
  if (returns.empty() || is_written(returns[0])) return absl::StrCat("  ", call, ";\n");
  const std::string result = absl::StrCat("r", step.first_id);
  std::string text = absl::StrCat("  auto ", result, " = ", call, ";\n");
  int id = step.first_id;
  for (size_t r = 0; r < returns.size(); ++r) {
    const std::string value = returns.size() == 1 ? result : absl::StrCat("std::get<", r, ">(", result, ")");
    const auto kind = returns[r].type()->kind();
    if (kind == c10::TypeKind::TensorType) {
      absl::StrAppendFormat(&text, "  at::Tensor t%d = %s;\n  all.emplace_back(\"t%d\", t%d);\n", id, value, id, id);
      ++id;
    } else if (kind == c10::TypeKind::ListType) {
      for (int k = 0; known.count(id) > 0; ++k, ++id) {
        absl::StrAppendFormat(&text, "  at::Tensor t%d = %s[%d];\n  all.emplace_back(\"t%d\", t%d);\n", id, value, k,
                              id, id);
      }
    } else {
      absl::StrAppendFormat(&text, "  numbers.push_back(at::Scalar(%s).toDouble());\n", value);
    }
  }
  return text;
}

std::string distributed(const Leaf& leaf, const Program& program) {
  const std::string where = absl::StrCat("mesh, ", layout(leaf.placements));
  if (!is_partial(leaf)) return absl::StrCat("distribute_tensor(", tensor(value_of(leaf)), ", ", where, ")");
  const auto parts = parts_of(leaf, mesh_of(program.mesh));
  return absl::StrCat("from_local({",
                      absl::StrJoin(parts, ", ", [](std::string* out, const at::Tensor& t) { *out += tensor(t); }),
                      "}, ", where, ", {.shape = std::vector<int64_t>", list(leaf.sizes), "}).clone()");
}

std::string leaves(const Program& program, bool spread) {
  std::string text;
  for (const Leaf& leaf : program.leaves) {
    absl::StrAppend(&text, "      ", spread ? distributed(leaf, program) : tensor(value_of(leaf)),
                    leaf.requires_grad ? ".requires_grad_()" : "", ",  // t", leaf.id, "\n");
  }
  return text;
}

std::string steps(const Program& program) {
  Execution plain;
  for (const Leaf& leaf : program.leaves) plain.add(leaf);
  std::string text;
  for (size_t k = 0; k < program.leaves.size(); ++k) {
    const int id = program.leaves[k].id;
    absl::StrAppendFormat(&text, "  at::Tensor t%d = leaves[%d];\n  all.emplace_back(\"t%d\", t%d);\n", id, k, id, id);
  }
  for (const Step& step : program.steps) {
    try {
      plain.run(step);
    } catch (const std::exception&) {
    }
    text += statement(step, plain.tensors());
  }
  return text;
}

std::string tolerance(const Program& program) {
  double allowed = 1e-8;
  Execution plain;
  try {
    for (const Leaf& leaf : program.leaves) plain.add(leaf);
    for (const Step& step : program.steps) plain.run(step);
  } catch (const std::exception&) {
  }
  for (const auto& [id, t] : plain.tensors()) {
    if (t.defined()) allowed = std::max(allowed, tolerance_of(t.scalar_type()));
  }
  return number(allowed);
}

std::string seed_layout(const Program& program) {
  Placements placements(program.mesh.size(), Replicate());
  if (program.seeds == Program::Seeds::kLikeOutput) return "without_partials(DTensor(output).placements())";
  if (program.seeds == Program::Seeds::kPartial) placements[0] = Partial();
  return absl::StrCat("Placements", layout(placements));
}

}  // namespace

std::string print_cpp(const Program& program, const Outcome& outcome) {
  int64_t ranks = 1;
  for (int64_t n : program.mesh) ranks *= n;
  const std::string message = absl::StrReplaceAll(outcome.message.substr(0, 400), {{"\n", " "}});
  std::string text = absl::StrReplaceAll(kPrelude, {{"@WHAT@", signature(outcome)},
                                                    {"@MESSAGE@", message},
                                                    {"@RANKS@", absl::StrCat(ranks)},
                                                    {"@MESH@", list(program.mesh)},
                                                    {"@TOLERANCE@", tolerance(program)}});
  text += absl::StrReplaceAll(program.order == 0 ? kNoGradients : kGradients,
                              {{"@ORDER@", absl::StrCat(program.order)}, {"@SEEDS@", seed_layout(program)}});
  absl::StrAppend(&text, kStepsBegin, steps(program), kStepsEnd);
  text +=
      absl::StrReplaceAll(kMain, {{"@PLAIN@", leaves(program, false)},
                                  {"@DISTRIBUTED@", leaves(program, true)},
                                  {"@SCOPE@", program.replicate_unsupported ? "  ReplicateUnsupported guard;\n" : ""}});
  return text;
}

}  // namespace dtensor::fuzz
