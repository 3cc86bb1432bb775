#include "propagation/rule_registry.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "propagation/functional_form.h"

namespace dtensor {
using namespace internal;

namespace {

std::string full_name(const std::string& name, const std::string& overload) {
  return overload.empty() ? name : absl::StrCat(name, ".", overload);
}

struct Family {
  std::string name, file;
  void (*add)(RuleRegistry&);
};

// By name. Filled before main.
std::map<std::string, Family>& families() {
  static auto* const all = new std::map<std::string, Family>;
  return *all;
}

bool is_pointwise(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::pointwise) && !op.hasTag(at::Tag::nondeterministic_seeded);
}

}  // namespace

struct RuleRegistry::State {
  mutable std::mutex mutex;
  std::map<std::string, std::shared_ptr<const OpRule>> rules;
  absl::flat_hash_map<std::string, FoundHandler> handlers;
  const Family* family = nullptr;  // the family that is being added; null: the program adds its own
  std::map<std::pair<std::string, Entry::Kind>, const Family*> owners;
  std::shared_ptr<const OpRule> default_pointwise;
  // Results of find() since the last change, by full operator name.
  mutable absl::flat_hash_map<std::string, std::shared_ptr<const OpRule>> found;

  // If two families added the same operator, the order would decide silently.
  void own(const std::string& op, Entry::Kind kind) {
    const auto [it, is_new] = owners.try_emplace({op, kind}, family);
    if (is_new || it->second == family) return;
    TORCH_CHECK(family == nullptr, "the ", kind == Entry::Kind::kRule ? "rule" : "handler", " of ", op, " is added by ",
                it->second->name, " and by ", family->name);
    it->second = nullptr;
  }

  void changed() {
    found.clear();
    ++generation_;
  }

  std::shared_ptr<const OpRule> get(const std::string& name) const {
    auto it = rules.find(name);
    return it == rules.end() ? nullptr : it->second;
  }

  std::shared_ptr<const OpRule> look_up(const c10::OperatorHandle& op) const {
    const auto& [name, overload] = op.operator_name();
    if (auto rule = get(full_name(name, overload))) return rule;
    bool pointwise = is_pointwise(op);
    auto& dispatcher = c10::Dispatcher::singleton();
    if (has_outs(op.schema())) {
      std::vector<std::string> overloads = usual_functional_overloads(overload);
      const std::string prefix = name + ".";
      for (auto it = rules.lower_bound(prefix); it != rules.end() && absl::StartsWith(it->first, prefix); ++it) {
        overloads.push_back(it->first.substr(prefix.size()));
      }
      for (const std::string& candidate : overloads) {
        auto handle = dispatcher.findSchema({name, candidate});
        if (!handle || !is_functional_form(handle->schema(), op.schema())) continue;
        if (auto rule = get(full_name(name, candidate))) return rule;
        pointwise = pointwise || is_pointwise(*handle);
      }
    }
    if (auto rule = get(name)) return rule;
    if (std::string functional = functional_name(name); !functional.empty()) {
      if (auto rule = get(full_name(functional, overload))) return rule;
      if (auto rule = get(functional)) return rule;
      auto handle = dispatcher.findSchema({functional, overload});
      pointwise = pointwise || (handle && is_pointwise(*handle));
    }
    return pointwise ? default_pointwise : nullptr;
  }
};

RuleRegistry::RuleRegistry() : state_(std::make_shared<State>()) {}

constinit std::atomic<uint64_t> RuleRegistry::generation_{1};

RuleRegistry& RuleRegistry::instance() {
  static RuleRegistry* const registry = [] {
    auto* const made = new RuleRegistry();
    for (const auto& [name, family] : families()) {
      made->state_->family = &family;
      family.add(*made);
    }
    made->state_->family = nullptr;
    return made;
  }();
  return *registry;
}

RuleFamily::RuleFamily(const char* name, void (*add)(RuleRegistry&), const char* file) {
  std::string source = file;
  if (absl::StartsWith(source, "external/")) source.erase(0, source.find('/', sizeof "external/" - 1) + 1);
  TORCH_CHECK(families().emplace(name, Family{name, std::move(source), add}).second,
              "two families of rules are called ", name);
}

void RuleRegistry::add(const std::string& op, OpRule rule) { add(std::vector<std::string>{op}, rule); }

void RuleRegistry::add(const std::vector<std::string>& ops, const OpRule& rule) {
  for (const std::string& op : ops) {
    TORCH_CHECK(op.find("::") != std::string::npos, "RuleRegistry::add: an operator is named \"ns::name\" or ",
                "\"ns::name.overload\", not \"", op, "\"");
    TORCH_CHECK(static_cast<bool>(rule.per_dim) != static_cast<bool>(rule.whole), "RuleRegistry::add(\"", op,
                "\"): one of OpRule::per_dim and OpRule::whole must be set, and only one");
  }
  auto shared = std::make_shared<const OpRule>(rule);
  std::lock_guard<std::mutex> lock(state_->mutex);
  for (const std::string& op : ops) {
    state_->own(op, Entry::Kind::kRule);
    state_->rules[op] = shared;
  }
  state_->changed();
}

void RuleRegistry::set_default_pointwise(OpRule rule) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->default_pointwise = std::make_shared<const OpRule>(std::move(rule));
  state_->changed();
}

std::shared_ptr<const OpRule> RuleRegistry::find(const c10::OperatorHandle& op) const {
  const auto& name = op.operator_name();
  std::string key = full_name(name.name, name.overload_name);
  std::lock_guard<std::mutex> lock(state_->mutex);
  auto it = state_->found.find(key);
  if (it != state_->found.end()) return it->second;
  auto rule = state_->look_up(op);
  state_->found.emplace(std::move(key), rule);
  return rule;
}

void RuleRegistry::add_handler(const std::string& op, Handler handler) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->own(op, Entry::Kind::kHandler);
  state_->handlers[op] = {handler};
}

void RuleRegistry::add_handler_of_uneven(const std::string& op, Handler handler) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->own(op, Entry::Kind::kHandler);
  state_->handlers[op] = {handler, /*uneven_only=*/true};
}

RuleRegistry::FoundHandler RuleRegistry::find_handler(const c10::OperatorHandle& op) const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  for (const std::string& name : {c10::toString(op.operator_name()), op.schema().name()}) {
    if (auto it = state_->handlers.find(name); it != state_->handlers.end()) return it->second;
  }
  return {};
}

std::vector<RuleRegistry::Entry> RuleRegistry::entries() const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<Entry> result;
  for (const auto& [what, family] : state_->owners) {
    result.push_back({what.first, what.second, family == nullptr ? "" : family->file});
  }
  return result;
}

}  // namespace dtensor
