#include <c10/util/Exception.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "checkpoint/formats/tensor_file.h"
#include "checkpoint/formats/torch_file.h"
#include "checkpoint/one_writer.h"
#include "checkpoint/serialize.h"
#include "checkpoint/serialize_parts.h"
#include "dtensor/optimizer/optimizer_state.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/offload_parts.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerParamState;

bool any_distributed(const Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (std::any_of(group.params().begin(), group.params().end(), [](const at::Tensor& p) { return is_dtensor(p); }))
      return true;
  }
  return false;
}

// In the order in which every process of a job has the parameters: the map of states is ordered by addresses, which
// differ. Error (NotImplementedError): an optimizer that is not known. Error (ValueError): state of a parameter that
// the optimizer no longer has, whose place in the order is unknown.
std::vector<at::Tensor*> distributed_state(const Optimizer& optimizer) {
  std::vector<at::Tensor*> result;
  absl::flat_hash_set<const void*> in_groups;
  for (const auto& group : optimizer.param_groups()) {
    for (const at::Tensor& p : group.params()) {
      const auto it = optimizer.state().find(p.unsafeGetTensorImpl());
      if (it != optimizer.state().end() && in_groups.insert(it->first).second) {
        const auto fields = fields_of(*it->second);
        TORCH_CHECK_NOT_IMPLEMENTED(
            fields || !any_distributed(optimizer),
            "[save] distributed state of this optimizer is not known; SGD, Adam, AdamW, Adagrad and RMSprop are");
        if (fields) {
          for (const auto& [name, place] : fields->tensors) {
            if (is_dtensor(*place)) result.push_back(place);
          }
        }
      }
    }
  }
  for (const auto& [key, state] : optimizer.state()) {
    if (in_groups.contains(key)) continue;
    const auto fields = fields_of(*state);
    const bool distributed = fields && std::any_of(fields->tensors.begin(), fields->tensors.end(),
                                                   [](const auto& named) { return is_dtensor(*named.second); });
    TORCH_CHECK_VALUE(!distributed,
                      "[save] the optimizer has state of a parameter that is in none of its param_groups; "
                      "erase it from state()");
  }
  return result;
}

// Restores the old state and options unless the load succeeded.
class Undo {
 public:
  explicit Undo(Optimizer& optimizer) : optimizer_(optimizer) {
    for (const auto& [key, state] : optimizer.state()) states_.emplace_back(key, state->clone());
    for (const auto& group : optimizer.param_groups())
      options_.push_back(group.has_options() ? group.options().clone() : nullptr);
  }
  ~Undo() {
    if (done_) return;
    optimizer_.state().clear();
    for (auto& [key, state] : states_) optimizer_.state()[key] = std::move(state);
    for (size_t i = 0; i < options_.size(); ++i) {
      if (options_[i]) optimizer_.param_groups()[i].set_options(std::move(options_[i]));
    }
  }
  void all_went_well() { done_ = true; }

 private:
  Optimizer& optimizer_;
  std::vector<std::pair<void*, std::unique_ptr<OptimizerParamState>>> states_;
  std::vector<std::unique_ptr<torch::optim::OptimizerOptions>> options_;
  bool done_ = false;
};

std::string name_of(const at::Tensor& p, size_t index) {
  if (is_dtensor(p) && meta_without_sync(p).name) return "'" + *meta_without_sync(p).name + "'";
  return "parameter " + std::to_string(index);
}

// State that came from a file, laid out like its parameter.
void lay_out(at::Tensor& t, const std::string& state_name, const at::Tensor& p, size_t index) {
  if (!t.defined()) return;
  TORCH_CHECK_VALUE(t.sizes() == p.sizes(), "[load] ", state_name, " of ", name_of(p, index), " has shape ", t.sizes(),
                    " in the file, but the parameter has ", p.sizes());
  if (!is_dtensor(p)) {
    t = t.to(p.device());
    return;
  }
  const Spec& spec = *spec_of(p);
  t = distribute_tensor(t.detach(), spec.mesh(), spec.placements(), std::nullopt);
  if (is_offloaded(p)) t = offload_parts(t);
}

void lay_out(OptimizerParamState& state, const at::Tensor& p, size_t index) {
  const auto fields = fields_of(state);
  TORCH_CHECK_NOT_IMPLEMENTED(
      fields || !is_dtensor(p),
      "[load] distributed state of this optimizer is not known; SGD, Adam, AdamW, Adagrad and RMSprop are");
  if (!fields) return;
  for (const auto& [name, place] : fields->tensors) lay_out(*place, name, p, index);
}

}  // namespace

void save(const Optimizer& optimizer, const std::string& path) {
  const std::vector<at::Tensor*> distributed = distributed_state(optimizer);
  struct Swapped {
    std::vector<std::pair<at::Tensor*, at::Tensor>> originals;
    ~Swapped() {
      for (auto& [place, t] : originals) *place = std::move(t);
    }
  } swapped;
  std::vector<at::Tensor> tensors;
  for (at::Tensor* place : distributed) {
    tensors.push_back(*place);
    at::Tensor whole = whole_value(*place);
    swapped.originals.emplace_back(place, std::exchange(*place, std::move(whole)));
  }
  torch::serialize::OutputArchive archive;
  write_once(
      tensors, path, [&] { optimizer.save(archive); },
      [&] { write_archive(path, [&](const auto& sink) { archive.save_to(sink); }); });
}

void load(Optimizer& optimizer, const std::string& path) {
  with_path(path, [&] {
    const TorchFile file(path);
    TORCH_CHECK_VALUE(file.is_archive(), "[load] it holds named tensors, not the state of a C++ optimizer");
    torch::serialize::InputArchive archive = file.archive();
    Undo undo(optimizer);
    optimizer.load(archive);
    size_t index = 0;
    for (const auto& group : optimizer.param_groups()) {
      for (const at::Tensor& p : group.params()) {
        const auto it = optimizer.state().find(p.unsafeGetTensorImpl());
        if (it != optimizer.state().end()) {
          TORCH_CHECK(it->second != nullptr, "[load] damaged: two parameters have one state");
          lay_out(*it->second, p, index);
        }
        ++index;
      }
    }
    undo.all_went_well();
  });
}

}  // namespace dtensor
