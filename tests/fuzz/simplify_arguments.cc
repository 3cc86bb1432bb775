#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "tests/fuzz/simplify.h"

namespace dtensor::fuzz {
namespace {

std::optional<Argument> default_of(const c10::Argument& argument) {
  if (!argument.default_value()) return std::nullopt;
  const c10::IValue& value = *argument.default_value();
  if (value.isNone()) return Argument();
  if (value.isBool()) return Argument(value.toBool());
  if (value.isInt() && argument.type()->kind() != c10::TypeKind::FloatType) return Argument(value.toInt());
  if (value.isDouble()) return Argument(value.toDouble());
  if (value.isString()) return Argument(value.toStringRef());
  return std::nullopt;
}

// In the order of the measure: nothing, the default, none, 0, 1, shorter lists.
std::vector<Argument> simpler(const Argument& value, const c10::Argument& argument) {
  std::vector<Argument> all;
  if (std::holds_alternative<std::monostate>(value) || argument.is_out()) return all;
  const auto usual = default_of(argument);
  if (usual == value) return all;
  if (usual) all.push_back(*usual);
  const bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
  if (optional && !(usual && std::holds_alternative<std::monostate>(*usual))) all.push_back(Argument());
  if (const auto* i = std::get_if<int64_t>(&value)) {
    for (int64_t to : {int64_t{0}, int64_t{1}}) {
      if (*i == to) break;
      all.push_back(to);
    }
  } else if (const auto* d = std::get_if<double>(&value)) {
    for (double to : {0., 1.}) {
      if (*d == to) break;
      all.push_back(to);
    }
  } else if (const auto* list = std::get_if<std::vector<int64_t>>(&value); list && !list->empty()) {
    all.push_back(std::vector<int64_t>(list->begin(), list->end() - 1));
    all.push_back(std::vector<int64_t>(list->begin() + 1, list->end()));
  } else if (const auto* refs = std::get_if<TensorRefs>(&value); refs && refs->ids.size() > 1) {
    for (size_t k = 0; k < refs->ids.size(); ++k) {
      TensorRefs fewer = *refs;
      fewer.ids.erase(fewer.ids.begin() + static_cast<int64_t>(k));
      all.push_back(fewer);
    }
  }
  return all;
}

}  // namespace

std::vector<Program> with_simpler_arguments(const Program& program) {
  std::vector<Program> all;
  for (size_t k = 0; k < program.steps.size(); ++k) {
    const Step& step = program.steps[k];
    if (step.op == kRedistribute) continue;
    const size_t dot = step.op.find('.');
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(
        step.op.substr(0, dot).c_str(), dot == std::string::npos ? "" : step.op.substr(dot + 1).c_str());
    for (size_t a = 0; a < step.args.size(); ++a) {
      for (Argument& value : simpler(step.args[a], op.schema().arguments()[a])) {
        all.push_back(program);
        all.back().steps[k].args[a] = std::move(value);
      }
    }
  }
  return all;
}

}  // namespace dtensor::fuzz
