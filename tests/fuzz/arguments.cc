#include "tests/fuzz/arguments.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/fuzz/compare.h"
#include "tests/fuzz/random_leaf.h"

namespace dtensor::fuzz {
namespace {

bool is_index_name(const std::string& name) { return name == "index" || name == "indices"; }

bool is_distinct(const at::Tensor& t) {
  const auto values = numbers(t);
  return std::set<double>(values.begin(), values.end()).size() == values.size();
}

}  // namespace

int Draft::add(Leaf leaf) {
  leaf.id = next_id++;
  plain.add(leaf);
  program.leaves.push_back(std::move(leaf));
  return program.leaves.back().id;
}

void Draft::cut_leaves(size_t count) {
  while (program.leaves.size() > count) {
    plain.remove(program.leaves.back().id);
    program.leaves.pop_back();
  }
}

Arguments::Arguments(Draft& draft, const Operator& op)
    : draft_(draft), op_(op), template_(template_of(op.base, draft.random.bits())) {}

std::optional<std::vector<Argument>> Arguments::make() {
  std::vector<Argument> args;
  for (const auto& argument : op_.handle.schema().arguments()) {
    if (argument.is_out()) {
      args.push_back(TensorRef());
      continue;
    }
    auto made = make(argument);
    if (!made) return std::nullopt;
    if (argument.name() == "dim") {
      if (const auto* dim = std::get_if<int64_t>(&*made)) dim_ = *dim;
    }
    args.push_back(std::move(*made));
  }
  if (needs_distinct_values(op_.base) && self_.defined() && !is_distinct(self_)) return std::nullopt;
  return args;
}

std::optional<Argument> Arguments::make(const c10::Argument& argument) {
  c10::TypePtr type = argument.type();
  bool optional = false;
  if (const auto inner = type->cast<c10::OptionalType>()) {
    type = inner->getElementType();
    optional = true;
  }
  if (template_ != nullptr) {
    for (const auto& [name, text] : *template_) {
      if (name == argument.name()) return by_template(argument, type, text);
    }
  }
  const bool tensor = type->kind() == c10::TypeKind::TensorType;
  if (optional && draft_.random.chance(tensor ? 0.4 : 0.3)) return Argument();
  if (argument.default_value() && draft_.random.chance(0.4)) {
    const c10::IValue& value = *argument.default_value();
    if (value.isNone()) return Argument();
    if (value.isBool()) return Argument(value.toBool());
    if (value.isInt() && type->kind() != c10::TypeKind::FloatType) return Argument(value.toInt());
    if (value.isDouble()) return Argument(value.toDouble());
    if (value.isString()) return Argument(value.toStringRef());
  }
  return by_type(argument, type);
}

std::optional<Argument> Arguments::by_type(const c10::Argument& argument, const c10::TypePtr& type) {
  const std::string& name = argument.name();
  Random& random = draft_.random;
  const std::string text_of_type = argument.real_type()->repr_str();
  if (name == "dtype" || absl::StrContains(text_of_type, "ScalarType")) return Argument(random_dtype(random));
  if (name == "layout" || name == "device" || name == "pin_memory") return Argument();
  if (name == "memory_format") return Argument(c10::MemoryFormat::Contiguous);
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return Argument(tensor(name, argument.alias_info() && argument.alias_info()->isWrite()));
    case c10::TypeKind::BoolType:
      return Argument(random.chance(0.5));
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return Argument(integer(name));
    case c10::TypeKind::FloatType:
      return Argument(number(name));
    case c10::TypeKind::NumberType:
      return scalar();
    case c10::TypeKind::StringType:
      return Argument(text(name));
    default:
      break;
  }
  const auto list = type->cast<c10::ListType>();
  if (!list) return std::nullopt;
  const auto element = list->getElementType();
  if (element->kind() == c10::TypeKind::TensorType) return Argument(tensors(name, false));
  if (element->kind() == c10::TypeKind::OptionalType) return Argument(tensors(name, true));
  if (element->kind() == c10::TypeKind::BoolType) return Argument(std::vector<bool>(3, true));
  if (element->kind() == c10::TypeKind::NumberType) return Argument(std::vector<double>(of_list_.size(), number(name)));
  if (element->kind() == c10::TypeKind::FloatType) return Argument(std::vector<double>{number(name), number(name)});
  if (element->kind() == c10::TypeKind::IntType || element->kind() == c10::TypeKind::SymIntType)
    return Argument(integers(name));
  return std::nullopt;
}

std::optional<Argument> Arguments::by_template(const c10::Argument&, const c10::TypePtr& type,
                                               const std::string& text) {
  if (text == "none") return Argument();
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return text.empty() ? Argument() : Argument(templated_tensor(text, true));
    case c10::TypeKind::BoolType:
      return Argument(text == "true");
    case c10::TypeKind::StringType:
      return Argument(text.substr(1, text.size() - 2));
    case c10::TypeKind::FloatType: {
      double value = 0;
      if (!absl::SimpleAtod(text, &value)) return std::nullopt;
      return Argument(value);
    }
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      int64_t value = 0;
      if (!absl::SimpleAtoi(text, &value)) return std::nullopt;
      return Argument(value);
    }
    default:
      break;
  }
  const auto list = type->cast<c10::ListType>();
  if (!list) return std::nullopt;
  const auto kind = list->getElementType()->kind();
  if (kind == c10::TypeKind::TensorType || kind == c10::TypeKind::OptionalType) {
    TensorRefs refs;
    for (absl::string_view part : absl::StrSplit(text, ',')) {
      refs.ids.push_back(part.empty() ? -1 : templated_tensor(std::string(part), refs.ids.empty()).id);
    }
    return Argument(refs);
  }
  if (text[0] == '[') return Argument(sizes_of(text.substr(1, text.size() - 2)));
  std::vector<int64_t> numbers;
  for (absl::string_view part : absl::StrSplit(text, ' ')) numbers.push_back(std::stoll(std::string(part)));
  return Argument(numbers);
}

TensorRef Arguments::tensor(const std::string& name, bool written) {
  const TensorRef ref = self_.defined() ? other_tensor(name) : first_tensor(written);
  if (!self_.defined()) self_ = draft_.at(ref.id);
  return ref;
}

TensorRef Arguments::first_tensor(bool written) {
  std::vector<int> candidates;
  for (const auto& [id, t] : draft_.plain.tensors()) {
    if (!t.defined() || t.numel() > 400 || t.dim() > 5) continue;
    if (written && t.is_leaf() && t.requires_grad()) continue;
    if (takes_integers(op_.base) && !c10::isIntegralType(t.scalar_type(), true)) continue;
    candidates.push_back(id);
    if (t.is_view()) candidates.push_back(id);  // twice as likely
  }
  Random& random = draft_.random;
  if (!candidates.empty() && random.chance(0.8)) return {random.pick(candidates)};
  c10::ScalarType dtype = random.chance(0.7) ? draft_.usual_dtype : random_dtype(random);
  if (takes_integers(op_.base)) {
    dtype = random.pick(std::vector<c10::ScalarType>{c10::ScalarType::Long, c10::ScalarType::Int, c10::ScalarType::Bool,
                                                     c10::ScalarType::Byte});
  }
  Leaf leaf = random_leaf(random, draft_.program.mesh, random_sizes(random), dtype);
  if (written) leaf.requires_grad = false;
  return {draft_.add(std::move(leaf))};
}

TensorRef Arguments::other_tensor(const std::string& name) {
  Random& random = draft_.random;
  std::vector<int64_t> sizes = self_.sizes().vec();
  const auto& mesh = draft_.program.mesh;
  if (is_index_name(name)) {
    if (op_.base == "take" || op_.base == "put")
      return {draft_.add(random_indices(random, mesh, random_sizes(random), self_.numel()))};
    const bool flat = op_.base.rfind("index_", 0) == 0;
    if (flat) sizes = {random.between(0, 5)};
    if (!flat) {
      for (int64_t& n : sizes) n = random.between(std::min<int64_t>(n, 1), n);
    }
    return {draft_.add(random_indices(random, mesh, sizes, size_of_dim()))};
  }
  const bool mask = name == "mask" || name == "condition";
  if (!mask && random.chance(0.5)) {  // an existing one of the same shape
    std::vector<int> same;
    for (const auto& [id, t] : draft_.plain.tensors()) {
      if (t.defined() && t.sizes() == self_.sizes()) same.push_back(id);
    }
    if (!same.empty()) return {random.pick(same)};
  }
  if (random.chance(0.3) && !sizes.empty() && of_list_.empty()) {  // to be broadcast
    sizes.erase(sizes.begin(), sizes.begin() + random.below(static_cast<int64_t>(sizes.size()) + 1));
    for (int64_t& n : sizes) n = random.chance(0.3) ? 1 : n;
  }
  const c10::ScalarType dtype = mask                  ? c10::ScalarType::Bool
                                : random.chance(0.75) ? self_.scalar_type()
                                                      : random_dtype(random);
  return {draft_.add(random_leaf(random, mesh, sizes, dtype))};
}

TensorRefs Arguments::tensors(const std::string& name, bool optional) {
  if (!self_.defined()) {
    TensorRefs refs = {{first_tensor(false).id}};
    self_ = draft_.at(refs.ids[0]);
    while (refs.ids.size() < 3 && draft_.random.chance(0.6)) refs.ids.push_back(other_tensor(name).id);
    of_list_ = refs.ids;
    return refs;
  }
  TensorRefs refs;
  const size_t count = of_list_.empty() ? draft_.random.between(1, 2) : of_list_.size();
  for (size_t k = 0; k < count; ++k) {
    if (k < of_list_.size()) self_ = draft_.at(of_list_[k]);
    refs.ids.push_back(optional && draft_.random.chance(0.2) ? -1 : other_tensor(name).id);
  }
  return refs;
}

int64_t Arguments::letter(char c) {
  auto [found, fresh] = letters_.try_emplace(c, 0);
  if (!fresh) return found->second;
  if (c == 'x') return found->second = draft_.random.chance(0.5) ? 1 : 3;
  if (c == 'y') return found->second = 3;
  return found->second = random_size(draft_.random);
}

std::vector<int64_t> Arguments::sizes_of(const std::string& letters) {
  std::vector<int64_t> sizes;
  for (char c : letters) {
    if (c != '*') {
      sizes.push_back(letter(c));
      continue;
    }
    if (!star_known_) {
      for (int64_t k = draft_.random.between(0, 2); k > 0; --k) star_.push_back(random_size(draft_.random));
      star_known_ = true;
    }
    sizes.insert(sizes.end(), star_.begin(), star_.end());
  }
  return sizes;
}

// Whether a tensor of those sizes matches the letters, whose sizes are then fixed.
bool Arguments::bind(const std::string& letters, at::IntArrayRef sizes) {
  auto known = letters_;
  auto star = star_;
  bool star_known = star_known_;
  size_t at = 0;
  for (size_t k = 0; k < letters.size(); ++k) {
    if (letters[k] == '*') {
      const int64_t count = static_cast<int64_t>(sizes.size()) - static_cast<int64_t>(letters.size()) + 1;
      if (count < 0) return false;
      std::vector<int64_t> here(sizes.begin() + at, sizes.begin() + at + count);
      if (star_known && here != star) return false;
      star = here;
      star_known = true;
      at += count;
      continue;
    }
    if (at >= sizes.size() || letters[k] == 'x' || letters[k] == 'y') return false;
    const auto [found, fresh] = known.try_emplace(letters[k], sizes[at]);
    if (found->second != sizes[at++]) return false;
  }
  if (at != sizes.size()) return false;
  letters_ = known;
  star_ = star;
  star_known_ = star_known;
  return true;
}

TensorRef Arguments::templated_tensor(const std::string& text, bool may_be_old) {
  Random& random = draft_.random;
  const auto& mesh = draft_.program.mesh;
  TensorRef ref;
  if (text[0] == '#') {
    const std::vector<int64_t> sizes = sizes_of(text.substr(text.find(':') + 1));
    ref.id = draft_.add(random_indices(random, mesh, sizes, letter(text[1])));
  } else if (text[0] == '?') {
    ref.id = draft_.add(random_leaf(random, mesh, sizes_of(text.substr(1)), c10::ScalarType::Bool));
  } else {
    if (may_be_old && random.chance(0.6)) {
      for (const auto& [id, t] : draft_.plain.tensors()) {
        if (t.defined() && t.numel() <= 400 && bind(text, t.sizes())) {
          ref.id = id;
          break;
        }
      }
    }
    if (ref.id < 0) {
      const c10::ScalarType dtype = self_.defined() ? self_.scalar_type() : draft_.usual_dtype;
      ref.id = draft_.add(random_leaf(random, mesh, sizes_of(text), dtype));
    }
  }
  if (!self_.defined()) self_ = draft_.at(ref.id);
  return ref;
}

}  // namespace dtensor::fuzz
