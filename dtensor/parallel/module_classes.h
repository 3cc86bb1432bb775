// Which modules of a model are alike, so that one choice of layouts serves all of them.
#pragma once

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace dtensor::internal {

// Modules with parameters of their own at one place of repeated layers, or a single one.
struct ModuleClass {
  std::vector<std::string> patterns;  // match these modules and no others
  std::vector<std::string> paths;     // of them, the first of each
  bool has_features = false;          // of a type that ColwiseParallel and RowwiseParallel exist for
};

struct ModuleClasses {
  std::vector<ModuleClass> classes;  // in the order of the model; empty: it has no parameters
  // Whose outermost matches are the outermost repeated layers; "" comes last if parameters are outside of them.
  std::vector<std::string> groups;
};

// Repeated layers are two or more modules of equal structure: type, own parameters (names, shapes, dtypes) and
// submodules (names, structures), in each of which two or more modules have parameters: two linear layers of one shape
// in a row are no such layers. A module at several paths counts once, at the first.
ModuleClasses module_classes(torch::nn::Module& model);

// The paths that the pattern matches, without those in others of them: "layers.*" has layers.0, not layers.0.wq.
std::vector<std::string> outermost_matches(const std::string& pattern, const std::vector<std::string>& paths);

// "layers.*, the model", which is the pattern "".
std::string patterns_text(const std::vector<std::string>& patterns);

}  // namespace dtensor::internal
