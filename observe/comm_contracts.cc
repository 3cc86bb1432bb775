#include "observe/comm_contracts.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "comm/module_text.h"

namespace dtensor {
using namespace internal;

namespace {

// "aten::exp: argument 'self' would need an all_reduce over tp, 64 B: f32[8, 2](P(sum)) -> (R) @ mesh(tp=2), in
// block.0, in backward"
std::string describe(const CommEvent& event) {
  const CommCause& cause = event.cause;
  const std::string collective(to_string(event.collective));
  std::string text = absl::StrCat(cause.op.empty() ? "communication" : cause.op, ": ");
  if (!cause.argument.empty()) absl::StrAppend(&text, "argument '", cause.argument, "' ");
  absl::StrAppend(&text, "would need ", collective[0] == 'a' ? "an " : "a ", collective, " over ", event.mesh_dims,
                  ", ", event.bytes, " B");
  if (event.layout_change) absl::StrAppend(&text, ": ", to_string(*event.layout_change, event.more_tensors));
  if (!cause.module_path.empty()) absl::StrAppend(&text, ", ", in_module(cause.module_path));
  if (event.backward) absl::StrAppend(&text, ", in backward");
  return text;
}

class NoImplicit final : public CommListener {
 public:
  void on_comm(const CommEvent& event, bool before) override {
    if (!before || !event.cause.implicit) return;
    // A gradient is brought to its parameter's layout within backward(), so it cannot be redistributed beforehand.
    const char* help =
        event.cause.op == "gradient"
            ? "Open a DelayGradientReduction scope around backward(), and call reduce_gradients() after it"
            : "Redistribute it before the call, redistribute(t, placements), or give it a layout that the operator "
              "takes";
    TORCH_CHECK(false, describe(event), ". ForbidImplicitCommunication is active. ", help,
                ", or end the guard's block before the call.");
  }
};

NoImplicit no_implicit;  // has no state, so one serves all guards

}  // namespace

ForbidImplicitCommunication::ForbidImplicitCommunication()
    : guard_([](Scope& s) { s.listeners.push_back(&no_implicit); }) {}

class CommBudget::Counter final : public CommListener {
 public:
  explicit Counter(const CommBudgetOptions& options) : limit_(options) {
    TORCH_CHECK_VALUE(limit_.max_calls >= 0 && limit_.max_bytes >= 0, "[CommBudget] max_calls is ", limit_.max_calls,
                      " and max_bytes is ", limit_.max_bytes, "; a limit is at least 0");
  }

  // Counts a call before it runs, so that threads cannot exceed the budget together.
  void on_comm(const CommEvent& event, bool before) override {
    if (!before) return;
    std::lock_guard lock(mutex_);
    const bool one_more = calls_ < limit_.max_calls;
    TORCH_CHECK(one_more && event.bytes <= limit_.max_bytes - bytes_, describe(event), ". The CommBudget allows ",
                one_more ? absl::StrCat(limit_.max_bytes, " B (max_bytes), of which ", bytes_, " B are used")
                         : absl::StrCat(limit_.max_calls, limit_.max_calls == 1 ? " collective" : " collectives",
                                        " (max_calls), and as many are used"),
                ". Redistribute a tensor once and use the result again, or raise the limit.");
    ++calls_;
    bytes_ += event.bytes;
  }

  void on_failed(const CommEvent& event, const CommView&) noexcept override {
    std::lock_guard lock(mutex_);
    --calls_;
    bytes_ -= event.bytes;
  }

  int64_t calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  int64_t bytes() const {
    std::lock_guard lock(mutex_);
    return bytes_;
  }

 private:
  const CommBudgetOptions limit_;
  mutable std::mutex mutex_;
  int64_t calls_ = 0, bytes_ = 0;  // guarded by mutex_
};

CommBudget::CommBudget(const CommBudgetOptions& options)
    : counter_(std::make_unique<Counter>(options)),
      guard_([this](Scope& s) { s.listeners.push_back(counter_.get()); }) {}

CommBudget::~CommBudget() = default;

int64_t CommBudget::calls() const { return counter_->calls(); }
int64_t CommBudget::bytes() const { return counter_->bytes(); }

}  // namespace dtensor
