#include "dtensor/parallel/module_classes.h"

#include <torch/nn/module.h>

#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <typeinfo>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "dtensor/parallel/path_patterns.h"
#include "dtensor/parallel/style_of_module.h"

namespace dtensor::internal {
namespace {

// A module at its first path.
struct ModuleNode {
  std::string path, name;
  torch::nn::Module* module = nullptr;
  std::optional<size_t> parent = std::nullopt;  // before it in the list of nodes
  size_t structure = 0;                         // equal for modules of equal structure
  size_t with_parameters = 0;                   // modules in it, itself included, that have parameters of their own
};

class ModuleTree {
 public:
  explicit ModuleTree(torch::nn::Module& model) {
    visit(model, "", "", std::nullopt);
    std::map<size_t, size_t> counts;
    for (const ModuleNode& n : nodes_) ++counts[n.structure];
    for (const ModuleNode& n : nodes_) repeated_.push_back(n.with_parameters >= 2 && counts[n.structure] >= 2);
  }

  const std::vector<ModuleNode>& nodes() const { return nodes_; }
  const std::vector<std::string>& paths() const { return paths_; }
  bool repeated(size_t n) const { return repeated_[n]; }

  // The node itself or the outermost module around it that is repeated; nullopt: none.
  std::optional<size_t> outermost_repeated(size_t n) const {
    std::optional<size_t> found;
    for (std::optional<size_t> at = n; at; at = nodes_[*at].parent) {
      if (repeated_[*at]) found = at;
    }
    return found;
  }

  // Equal for modules at one place of repeated layers: the path from the innermost of them.
  std::string place(size_t n) const {
    if (repeated_[n]) return absl::StrCat("#", nodes_[n].structure);
    if (!nodes_[n].parent) return "";
    return absl::StrCat(place(*nodes_[n].parent), ".", nodes_[n].name);
  }

 private:
  // The structure of the module.
  size_t visit(torch::nn::Module& module, const std::string& path, const std::string& name,
               std::optional<size_t> parent) {
    paths_.push_back(path);
    const auto seen = structure_of_.find(&module);
    if (seen != structure_of_.end()) {
      for (const auto& other : module.named_modules(path, /*include_self=*/false)) paths_.push_back(other.key());
      return seen->second;
    }
    const size_t self = nodes_.size();
    nodes_.push_back({path, name, &module, parent});
    std::string text = typeid(module).name();
    size_t with_parameters = own_parameters(module).empty() ? 0 : 1;
    for (const auto& p : module.named_parameters(/*recurse=*/false)) {
      if (!p.value().defined()) continue;
      absl::StrAppend(&text, " ", p.key(), " ", absl::StrJoin(p.value().sizes(), "x"), " ",
                      static_cast<int>(p.value().scalar_type()));
    }
    for (const auto& child : module.named_children()) {
      const size_t next = nodes_.size();
      const size_t of_child =
          visit(*child.value(), path.empty() ? child.key() : absl::StrCat(path, ".", child.key()), child.key(), self);
      absl::StrAppend(&text, " (", child.key(), " ", of_child, ")");
      if (next < nodes_.size()) with_parameters += nodes_[next].with_parameters;
    }
    nodes_[self].with_parameters = with_parameters;
    nodes_[self].structure = structures_.emplace(text, structures_.size()).first->second;
    return structure_of_[&module] = nodes_[self].structure;
  }

  std::vector<ModuleNode> nodes_;
  std::vector<std::string> paths_;  // of all modules, those at several paths included
  std::map<std::string, size_t> structures_;
  std::map<const torch::nn::Module*, size_t> structure_of_;
  std::vector<bool> repeated_;
};

std::vector<std::string> all_matches(const std::string& pattern, const std::vector<std::string>& paths) {
  std::vector<std::string> matches;
  absl::c_copy_if(paths, std::back_inserter(matches), [&](const auto& path) { return pattern_matches(pattern, path); });
  return matches;
}

// "layers.*.wq" for layers.0.wq and layers.1.wq. REQUIRES: paths of equally many parts.
std::string common_pattern(const std::vector<std::string>& paths) {
  std::vector<std::string> common = absl::StrSplit(pattern_of_path(paths.front()), '.');
  for (const std::string& path : paths) {
    const std::vector<std::string> parts = absl::StrSplit(pattern_of_path(path), '.');
    for (size_t i = 0; i < common.size(); ++i) {
      if (common[i] != parts[i]) common[i] = "*";
    }
  }
  return absl::StrJoin(common, ".");
}

// Few patterns that match these of all paths and no others.
std::vector<std::string> patterns_of(const std::vector<std::string>& paths, const std::vector<std::string>& all,
                                     bool outermost) {
  std::map<ptrdiff_t, std::vector<std::string>> by_depth;
  for (const std::string& path : paths) by_depth[absl::c_count(path, '.')].push_back(path);
  const std::set<std::string> wanted(paths.begin(), paths.end());
  std::vector<std::string> patterns;
  for (const auto& [depth, same] : by_depth) {
    const std::string pattern = common_pattern(same);
    const std::vector<std::string> matches = outermost ? outermost_matches(pattern, all) : all_matches(pattern, all);
    const bool exact = absl::c_all_of(matches, [&](const std::string& path) { return wanted.count(path) == 1; });
    if (exact) patterns.push_back(pattern);
    if (exact) continue;
    for (const std::string& path : same) patterns.push_back(pattern_of_path(path));
  }
  return patterns;
}

// Lists of paths by key, in the order of the first of each.
class PathsByKey {
 public:
  void add(const std::string& key, const std::string& path) {
    const auto [it, added] = index_.emplace(key, lists_.size());
    if (added) lists_.emplace_back();
    lists_[it->second].push_back(path);
  }
  const std::vector<std::vector<std::string>>& lists() const { return lists_; }

 private:
  std::map<std::string, size_t> index_;
  std::vector<std::vector<std::string>> lists_;
};

}  // namespace

std::vector<std::string> outermost_matches(const std::string& pattern, const std::vector<std::string>& paths) {
  std::vector<std::string> matches = all_matches(pattern, paths);
  const std::set<std::string> all(matches.begin(), matches.end());
  std::erase_if(matches, [&](const std::string& path) {
    for (size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', dot + 1)) {
      if (all.count(path.substr(0, dot)) == 1) return true;
    }
    return false;
  });
  return matches;
}

ModuleClasses module_classes(torch::nn::Module& model) {
  const ModuleTree tree(model);
  PathsByKey by_place, by_layer;
  std::map<std::string, torch::nn::Module*> module_at;
  bool outside = false;
  for (size_t n = 0; n < tree.nodes().size(); ++n) {
    const ModuleNode& node = tree.nodes()[n];
    const auto layer = tree.outermost_repeated(n);
    if (layer == n) by_layer.add(absl::StrCat(node.structure), node.path);
    if (own_parameters(*node.module).empty()) continue;
    by_place.add(tree.place(n), node.path);
    module_at[node.path] = node.module;
    outside = outside || !layer;
  }
  ModuleClasses result;
  for (const auto& paths : by_place.lists()) {
    result.classes.push_back(
        {patterns_of(paths, tree.paths(), /*outermost=*/false), paths, has_features(*module_at[paths.front()])});
  }
  for (const auto& paths : by_layer.lists()) {
    for (std::string& pattern : patterns_of(paths, tree.paths(), /*outermost=*/true))
      result.groups.push_back(std::move(pattern));
  }
  if (outside) result.groups.emplace_back();
  return result;
}

std::string patterns_text(const std::vector<std::string>& patterns) {
  return absl::StrJoin(patterns, ", ", [](std::string* out, const std::string& pattern) {
    absl::StrAppend(out, pattern.empty() ? "the model" : pattern);
  });
}

}  // namespace dtensor::internal
