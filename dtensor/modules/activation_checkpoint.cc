#include "dtensor/activation_checkpoint.h"

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

#include "absl/cleanup/cleanup.h"
#include "comm/recompute_guard.h"
#include "dtensor/gradients/forward_state.h"

namespace dtensor {
namespace internal {
namespace {

using torch::autograd::SavedVariableHooks;
using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

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
      : function_(function), inputs_(inputs), state_(inputs) {
    for (const at::Tensor& t : inputs_) versions_.push_back(t.defined() ? version_of(t) : 0);
  }

  std::vector<at::Tensor> run_forward() {
    const SavingGuard saving(this);
    std::vector<at::Tensor> results = function_(inputs_);
    forward_is_done_ = true;
    return results;
  }

  // For a tensor that an operator saves now, in forward or when the part is computed again.
  std::unique_ptr<SavedVariableHooks> hooks_of_next();

  // The tensor that was saved as number `index` in forward. Computes the part again where this backward has not yet,
  // or has taken the tensor already.
  at::Tensor unpack(size_t index) {
    std::lock_guard lock(mutex_);  // threads of several devices
    TORCH_CHECK(forward_is_done_,
                "[checkpoint] backward() or grad() was called inside the checkpointed function, for operators of the "
                "function: call it outside, or checkpoint a smaller part");
    const int64_t backward = torch::autograd::get_current_graph_task_id();
    if (!recomputed_ || backward != backward_ || !recomputed_->at(index).tensor.defined()) {
      backward_ = backward;
      recompute();
    }
    const Recomputed result = std::exchange(recomputed_->at(index), {});
    if (++num_taken_ == saved_.size()) recomputed_.reset();
    TORCH_CHECK(version_of(result.tensor) == result.version, "[checkpoint] tensor ", index,
                " that the function saved, ", text(result.tensor.sizes().vec(), result.tensor.scalar_type()),
                ", was written to in place after an operator had saved it for backward");
    return result.tensor;
  }

 private:
  struct Saved {
    std::vector<int64_t> sizes;
    at::ScalarType dtype;
  };
  struct Recomputed {
    at::Tensor tensor;     // without autograd history, which would keep itself alive; undefined: taken
    uint32_t version = 0;  // when it was saved
  };

  static uint32_t version_of(const at::Tensor& t) { return t.is_inference() ? 0 : t._version(); }

  // Saves nothing in forward, and the tensor itself when the part is computed again.
  class Hooks final : public SavedVariableHooks {
   public:
    Hooks(std::shared_ptr<CheckpointedPart> part, size_t index, bool is_recomputed)
        : part_(std::move(part)), index_(index), is_recomputed_(is_recomputed) {}
    void call_pack_hook(const at::Tensor& t) override {
      if (is_recomputed_) {
        kept_ = t.detach();
        part_->note_recomputed(index_, kept_);
      } else {
        part_->saved_.push_back({t.sizes().vec(), t.scalar_type()});
      }
    }
    at::Tensor call_unpack_hook() override { return is_recomputed_ ? kept_ : part_->unpack(index_); }

   private:
    std::shared_ptr<CheckpointedPart> part_;
    size_t index_;
    bool is_recomputed_;
    at::Tensor kept_;  // for operators of the part that need it while it is computed again
  };

  static std::string text(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    return c10::str(dtype, " ", c10::IntArrayRef(sizes));
  }

  void note_recomputed(size_t index, const at::Tensor& t) {
    const bool is_alike =
        index < saved_.size() && saved_[index].sizes == t.sizes() && saved_[index].dtype == t.scalar_type();
    TORCH_CHECK(is_alike,
                "[checkpoint] computed again in backward, the function saves another tensor than in forward: ",
                "number ", index, " is ", text(t.sizes().vec(), t.scalar_type()), ", and was ",
                index < saved_.size() ? text(saved_[index].sizes, saved_[index].dtype) : std::string("not there"),
                ". The function must compute the same each time it is called with the same inputs.");
    recomputed_->push_back({t, version_of(t)});
  }

  void check_inputs() const {
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (!inputs_[i].defined()) continue;
      TORCH_CHECK(version_of(inputs_[i]) == versions_[i], "[checkpoint] input ", i, " of the function, ",
                  text(inputs_[i].sizes().vec(), inputs_[i].scalar_type()),
                  ", was written to in place after the call; backward needs its value");
    }
  }

  void recompute() {
    check_inputs();
    recomputed_.emplace();
    num_taken_ = 0;
    recomputes_ = true;
    const absl::Cleanup done = [this] { recomputes_ = false; };
    absl::Cleanup drop_after_error = [this] { recomputed_.reset(); };
    run_again();
    TORCH_CHECK(recomputed_->size() == saved_.size(), "[checkpoint] computed again in backward, the function saves ",
                recomputed_->size(), " tensors, and saved ", saved_.size(),
                " in forward. It must compute the same each time it is called with the same inputs.");
    std::move(drop_after_error).Cancel();
  }

  void run_again() {
    const RecomputeGuard recompute_guard;
    const SavingGuard saving(this);
    const ForwardState::Guard state(state_);
    const c10::AutoGradMode with_graph(true);
    function_(inputs_);
  }

  const CheckpointedFunction function_;
  const std::vector<at::Tensor> inputs_;
  const ForwardState state_;
  std::vector<uint32_t> versions_;  // of the inputs
  std::vector<Saved> saved_;        // in forward
  bool forward_is_done_ = false;

  std::recursive_mutex mutex_;
  bool recomputes_ = false;
  int64_t backward_ = -1;  // the one that `recomputed_` belongs to
  std::optional<std::vector<Recomputed>> recomputed_;
  size_t num_taken_ = 0;
};

std::unique_ptr<SavedVariableHooks> CheckpointedPart::hooks_of_next() {
  const size_t index = recomputes_ ? recomputed_->size() : saved_.size();
  return std::make_unique<Hooks>(shared_from_this(), index, recomputes_);
}

// ------------------------------------------------------------ the engine that takes hooks

// LibTorch asks its default engine for the hooks of saved tensors; the one of a C++ program has none. Backward runs in
// that one all the same, as only the first engine of a process that computes gets threads for devices.
class EngineWithHooks final : public torch::autograd::Engine {
 public:
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs, bool keep_graph,
                                         bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs);
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return saving_part != nullptr ? saving_part->hooks_of_next() : nullptr;
  }
};

torch::autograd::Engine& engine_with_hooks() {
  static auto& engine = *new EngineWithHooks;  // used until the process exits
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
