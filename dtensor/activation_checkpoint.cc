#include "dtensor/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Generator.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "comm/forward_again.h"
#include "comm/scope.h"
#include "dtensor/scopes.h"

namespace dtensor {
namespace internal {
namespace {

using torch::autograd::SavedVariableHooks;
using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// ------------------------------------------------------------ state of the thread that forward depends on

// The default generators of the CPU and of the devices of `inputs`.
std::vector<at::Generator> generators_for(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Generator> result = {at::globalContext().defaultGenerator(c10::DeviceType::CPU)};
  for (const at::Tensor& t : inputs) {
    if (!t.defined() || t.is_cpu() || t.is_meta()) continue;
    const at::Generator& own = at::globalContext().defaultGenerator(t.device());
    bool is_new = true;
    for (const at::Generator& known : result) is_new = is_new && known != own;
    if (is_new) result.push_back(own);
  }
  return result;
}

// Sets generators back to the state that they had when this was made, and at the end to the one before.
class SavedDraws {
 public:
  explicit SavedDraws(const std::vector<at::Tensor>& inputs) : generators_(generators_for(inputs)) {
    states_ = copies();
  }

  class Guard {
   public:
    explicit Guard(const SavedDraws& draws) : draws_(draws), before_(draws.copies()) { draws_.set(draws_.states_); }
    ~Guard() { draws_.set(before_); }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    const SavedDraws& draws_;
    std::vector<at::Generator> before_;
  };

 private:
  std::vector<at::Generator> copies() const {
    PlainFactories plain;
    std::vector<at::Generator> result;
    for (at::Generator generator : generators_) {
      std::lock_guard lock(generator.mutex());
      result.push_back(generator.clone());
    }
    return result;
  }
  void set(const std::vector<at::Generator>& states) const {
    PlainFactories plain;
    for (size_t i = 0; i < generators_.size(); ++i) {
      at::Generator generator = generators_[i];
      std::lock_guard lock(generator.mutex());
      generator.set_state(states[i].get_state());
    }
  }

  std::vector<at::Generator> generators_, states_;
};

// Autocast of one type of device.
struct Autocast {
  c10::DeviceType device;
  bool enabled;
  at::ScalarType dtype;

  static Autocast of(c10::DeviceType device) {
    return {device, at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
  }
  void set() const {
    at::autocast::set_autocast_enabled(device, enabled);
    at::autocast::set_autocast_dtype(device, dtype);
  }
};

constexpr c10::DeviceType kAutocastDevices[] = {c10::DeviceType::CPU, c10::DeviceType::CUDA};

class AutocastGuard {
 public:
  explicit AutocastGuard(const std::vector<Autocast>& wanted) {
    for (const Autocast& autocast : wanted) {
      before_.push_back(Autocast::of(autocast.device));
      autocast.set();
    }
    at::autocast::increment_nesting();
  }
  ~AutocastGuard() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    for (const Autocast& autocast : before_) autocast.set();
  }
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  std::vector<Autocast> before_;
};

// ------------------------------------------------------------ a part of the model

class CheckpointedPart;

// What the operators that this thread runs save, goes to this part; null: to themselves.
thread_local CheckpointedPart* saving_part = nullptr;

class SavingGuard {
 public:
  explicit SavingGuard(CheckpointedPart* part) : before_(std::exchange(saving_part, part)) {}
  ~SavingGuard() { saving_part = before_; }
  SavingGuard(const SavingGuard&) = delete;
  SavingGuard& operator=(const SavingGuard&) = delete;

 private:
  CheckpointedPart* before_;
};

// One call of checkpoint(). Tensors that operators save are known by their order.
class CheckpointedPart : public std::enable_shared_from_this<CheckpointedPart> {
 public:
  CheckpointedPart(const CheckpointedFunction& function, const std::vector<at::Tensor>& inputs)
      : function_(function),
        inputs_(inputs),
        draws_(inputs),
        scope_(current_dispatch_scope()),
        module_path_(current_scope().module_path) {
    for (const c10::DeviceType device : kAutocastDevices) autocast_.push_back(Autocast::of(device));
  }

  std::vector<at::Tensor> run_forward() {
    const SavingGuard saving(this);
    return function_(inputs_);
  }

  // For a tensor that an operator saves now, in forward or when the part is computed again.
  std::unique_ptr<SavedVariableHooks> hooks_of_next();

  // The tensor that was saved as number `index` in forward. Computes the part again where this backward has not yet,
  // or has taken the tensor already.
  at::Tensor take(size_t index) {
    std::lock_guard lock(mutex_);  // threads of several devices
    const int64_t backward = torch::autograd::get_current_graph_task_id();
    if (!again_ || backward != backward_ || (index < again_->size() && !(*again_)[index].defined())) {
      backward_ = backward;
      compute_again();
    }
    at::Tensor result = std::exchange(again_->at(index), at::Tensor());
    if (++num_taken_ == saved_.size()) again_.reset();
    return result;
  }

 private:
  struct Saved {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
  };

  // Saves nothing in forward, and the tensor itself when the part is computed again.
  class Hooks final : public SavedVariableHooks {
   public:
    Hooks(std::shared_ptr<CheckpointedPart> part, size_t index, bool is_again)
        : part_(std::move(part)), index_(index), is_again_(is_again) {}
    void call_pack_hook(const at::Tensor& t) override {
      if (is_again_) {
        kept_ = t;
        part_->note_again(index_, t);
      } else {
        part_->saved_.push_back({t.sizes().vec(), t.scalar_type()});
      }
    }
    at::Tensor call_unpack_hook() override { return is_again_ ? kept_ : part_->take(index_); }

   private:
    std::shared_ptr<CheckpointedPart> part_;
    size_t index_;
    bool is_again_;
    at::Tensor kept_;  // for operators of the part that need it while it is computed again
  };

  static std::string text(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    return c10::str(dtype, " ", c10::IntArrayRef(sizes));
  }

  void note_again(size_t index, const at::Tensor& t) {
    const bool is_alike =
        index < saved_.size() && saved_[index].sizes == t.sizes() && saved_[index].dtype == t.scalar_type();
    TORCH_CHECK(is_alike,
                "[checkpoint] computed again in backward, the function saves another tensor than in forward: ",
                "number ", index, " is ", text(t.sizes().vec(), t.scalar_type()), ", and was ",
                index < saved_.size() ? text(saved_[index].sizes, saved_[index].dtype) : std::string("not there"),
                ". The function must compute the same each time it is called with the same inputs.");
    again_->push_back(t);
  }

  void compute_again() {
    again_.emplace();
    num_taken_ = 0;
    computes_again_ = true;
    const std::shared_ptr<void> done(nullptr, [this](void*) { computes_again_ = false; });
    try {
      const ForwardAgainGuard forward_again;
      const SavingGuard saving(this);
      const SavedDraws::Guard draws(draws_);
      const AutocastGuard autocast(autocast_);
      const DispatchScopeGuard scope([this](DispatchScope& s) {
        StepDecider* const decider = s.step_decider;
        s = scope_;
        s.step_decider = decider;
      });
      const ScopeGuard path([this](Scope& s) { s.module_path = module_path_; });
      std::optional<MeshScope> mesh;
      if (scope_.mesh.defined()) mesh.emplace(scope_.mesh);
      const c10::AutoGradMode with_graph(true);
      function_(inputs_);
    } catch (...) {
      again_.reset();
      throw;
    }
    TORCH_CHECK(again_->size() == saved_.size(), "[checkpoint] computed again in backward, the function saves ",
                again_->size(), " tensors, and saved ", saved_.size(),
                " in forward. It must compute the same each time it is called with the same inputs.");
  }

  const CheckpointedFunction function_;
  const std::vector<at::Tensor> inputs_;
  const SavedDraws draws_;
  const DispatchScope scope_;
  const std::string module_path_;
  std::vector<Autocast> autocast_;
  std::vector<Saved> saved_;  // in forward

  std::recursive_mutex mutex_;
  bool computes_again_ = false;
  int64_t backward_ = -1;                         // the one that `again_` belongs to
  std::optional<std::vector<at::Tensor>> again_;  // undefined: taken
  size_t num_taken_ = 0;
};

std::unique_ptr<SavedVariableHooks> CheckpointedPart::hooks_of_next() {
  const size_t index = computes_again_ ? again_->size() : saved_.size();
  return std::make_unique<Hooks>(shared_from_this(), index, computes_again_);
}

// ------------------------------------------------------------ the engine that asks for hooks

// LibTorch asks its default engine for the hooks of saved tensors; the one of a C++ program has none.
class EngineWithHooks final : public torch::autograd::Engine {
 public:
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return saving_part != nullptr ? saving_part->hooks_of_next() : nullptr;
  }
};

torch::autograd::Engine& engine_with_hooks() {
  static auto& engine = *new EngineWithHooks;  // its threads may run until the process exits
  return engine;
}

void use_engine_with_hooks() {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  using torch::autograd::Engine;
  if (&Engine::get_default_engine() == &engine_with_hooks()) return;
  TORCH_CHECK(&Engine::get_default_engine() == &Engine::get_base_engine(),
              "[checkpoint] this program has an autograd engine of its own, as a Python program does: call "
              "torch.utils.checkpoint.checkpoint(use_reentrant=False) there");
  torch::autograd::set_default_engine_stub(&engine_with_hooks);
}

}  // namespace
}  // namespace internal

std::vector<at::Tensor> checkpoint(
    const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& function,
    const std::vector<at::Tensor>& inputs) {
  TORCH_CHECK_VALUE(function, "[checkpoint] no function");
  if (!c10::GradMode::is_enabled()) return function(inputs);
  internal::use_engine_with_hooks();
  return std::make_shared<internal::CheckpointedPart>(function, inputs)->run_forward();
}

at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input) {
  TORCH_CHECK_VALUE(function, "[checkpoint] no function");
  const auto run = [function](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{function(inputs[0])};
  };
  return checkpoint(run, std::vector<at::Tensor>{input})[0];
}

}  // namespace dtensor
