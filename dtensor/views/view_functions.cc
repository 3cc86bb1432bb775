// View operators, above autograd: gives each view of a distributed tensor a replay function.
//
// When a view or its base is written to, LibTorch's autograd takes the view of the base again, for its grad_fn: by
// strides, which have no meaning for sharded parts, unless the view has a replay function. LibTorch makes such
// functions where view replay is on (c10::AutogradState), but then for plain tensors, too, and it copies the functions
// of a whole chain of views for each view that is added to it. A function made here shares the functions of the view it
// was taken from.
#include <ATen/core/DimVector.h>
#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "dtensor/dispatch_key.h"
#include "dtensor/tensor/above_autograd.h"
#include "dtensor/tensor/typed_operators.h"

namespace dtensor::internal {
namespace {

using torch::autograd::ViewFunc;
using torch::autograd::ViewInfo;
using torch::jit::Stack;

// A view operator's call.
struct RecordedView {
  explicit RecordedView(std::shared_ptr<RecordedView> of_view) : of(std::move(of_view)) {}
  // Iterative: a recursive destructor would need a stack as deep as the chain.
  virtual ~RecordedView() {
    std::shared_ptr<RecordedView> last = std::move(of);
    while (last && last.use_count() == 1) {
      std::shared_ptr<RecordedView> next = std::move(last->of);
      last = std::move(next);
    }
  }
  RecordedView(const RecordedView&) = delete;
  RecordedView& operator=(const RecordedView&) = delete;

  virtual at::Tensor take(const at::Tensor& t) const = 0;

  std::shared_ptr<RecordedView> of;  // null: taken of the base
};

struct BoxedView final : RecordedView {
  BoxedView(std::shared_ptr<RecordedView> of_view, const c10::OperatorHandle& op_called,
            std::vector<c10::IValue> arguments, size_t index)
      : RecordedView(std::move(of_view)), op(op_called), args(std::move(arguments)), result(index) {}

  at::Tensor take(const at::Tensor& t) const override {
    Stack stack = args;
    stack[0] = t;
    op.callBoxed(stack);
    return stack[0].isTensorList() ? stack[0].toTensorList().get(result) : stack[0].toTensor();
  }

  c10::OperatorHandle op;
  std::vector<c10::IValue> args;  // without the tensor, the first
  size_t result = 0;              // which of the views that the operator returns
};

class ReplayViews : public ViewFunc {
 public:
  explicit ReplayViews(std::shared_ptr<RecordedView> view) : view_(std::move(view)) {}

  at::Tensor operator()(const at::Tensor& base) const override {
    std::vector<const RecordedView*> chain;
    for (const RecordedView* v = view_.get(); v != nullptr; v = v->of.get()) chain.push_back(v);
    at::Tensor t = base;
    for (auto v = chain.rbegin(); v != chain.rend(); ++v) t = (*v)->take(t);
    return t;
  }

  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>>,
                                          std::optional<std::vector<at::Tensor>>) const override {
    return std::make_unique<ReplayViews>(view_);
  }

  const std::shared_ptr<RecordedView>& view() const { return view_; }

 private:
  std::shared_ptr<RecordedView> view_;
};

at::Tensor refuse_to_undo(const at::Tensor& view) {
  TORCH_CHECK_NOT_IMPLEMENTED(false,
                              "Views of distributed tensors have no function that makes the base of a view of shape ",
                              view.sizes(), ". The base is tensor._base().");
}

// The view `t` of some tensor, by its strides.
std::shared_ptr<RecordedView> by_strides(const at::Tensor& t) {
  static const auto as_strided = c10::Dispatcher::singleton().findSchemaOrThrow("aten::as_strided", "");
  return std::make_shared<BoxedView>(
      nullptr, as_strided,
      std::vector<c10::IValue>{c10::IValue(), t.sizes().vec(), t.strides().vec(), t.storage_offset()}, 0);
}

// How `t` was taken of its base; null: it is a base. `info_of`: for backward, or for forward mode.
template <typename InfoOf>
std::shared_ptr<RecordedView> recorded_view_of(const at::Tensor& t, InfoOf info_of) {
  const ViewInfo* info = info_of(t);
  if (info == nullptr) return nullptr;
  const auto* function = info->has_view_fn() ? dynamic_cast<const ReplayViews*>(&info->view_fn()) : nullptr;
  return function != nullptr ? function->view() : by_strides(t);
}

const ViewInfo* backward_info(const at::Tensor& t) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(t);
  return meta != nullptr && meta->has_bw_view() ? &meta->get_backward_view() : nullptr;
}

// Null also if it is the same as for backward.
const ViewInfo* own_forward_info(const at::Tensor& t) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(t);
  return meta != nullptr && meta->has_fw_view() && !meta->shared_view_info() ? &meta->get_forward_view() : nullptr;
}

const ViewInfo* forward_info(const at::Tensor& t) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(t);
  return meta != nullptr && meta->has_fw_view() ? &meta->get_forward_view() : nullptr;
}

// Autograd has no function that changes the view info of an existing view. This one has no other reference yet.
void set_function(const ViewInfo& info, std::shared_ptr<RecordedView> view) {
  auto& changed = const_cast<ViewInfo&>(info);
  changed.view_fn_ = std::make_unique<ReplayViews>(std::move(view));
  changed.rev_view_fn_ = refuse_to_undo;
}

// `take` makes the record of `view`, from that of `self`.
template <typename Take>
void give_function(const at::Tensor& view, const at::Tensor& self, const Take& take) {
  if (const ViewInfo* info = backward_info(view)) set_function(*info, take(recorded_view_of(self, backward_info)));
  if (const ViewInfo* info = own_forward_info(view)) set_function(*info, take(recorded_view_of(self, forward_info)));
}

// Below autograd, autograd does not track views.
bool is_tracked(const at::Tensor& t) {
  return is_dtensor(t) && !c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::ADInplaceOrView);
}

void run_view(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  keys = keys & kBelowThatKey;
  const size_t count = op.schema().arguments().size(), begin = stack->size() - count;
  const at::Tensor self = (*stack)[begin].toTensor();
  if (!is_tracked(self)) return op.redispatchBoxed(keys, stack);
  const auto given = torch::jit::last(*stack, count);
  std::vector<c10::IValue> args(given.begin(), given.end());
  args[0] = c10::IValue();
  op.redispatchBoxed(keys, stack);
  const c10::IValue& result = stack->back();
  const auto give = [&](const at::Tensor& view, size_t i) {
    give_function(view, self, [&](std::shared_ptr<RecordedView> of) {
      return std::make_shared<BoxedView>(std::move(of), op, args, i);
    });
  };
  if (result.isTensor()) return give(result.toTensor(), 0);
  const auto views = result.toTensorList();
  for (size_t i = 0; i < views.size(); ++i) give(views.get(i), i);
}

// The type of an argument that outlives its call.
template <typename T>
struct Owned {
  using Type = std::decay_t<T>;
};
template <>
struct Owned<c10::SymIntArrayRef> {
  using Type = c10::SymDimVector;
};
template <>
struct Owned<c10::IntArrayRef> {
  using Type = c10::DimVector;
};

// The same as BoxedView and run_view() for one operator with its own signature.
template <typename Op, typename Schema = typename Op::schema>
struct TypedView;

template <typename Op, typename... Args>
struct TypedView<Op, at::Tensor(const at::Tensor&, Args...)> final : RecordedView {
  TypedView(std::shared_ptr<RecordedView> of_view, Args... arguments)
      : RecordedView(std::move(of_view)), args(arguments...) {}

  at::Tensor take(const at::Tensor& t) const override {
    return std::apply([&](const auto&... arguments) { return Op::call(t, arguments...); }, args);
  }

  static at::Tensor run(c10::DispatchKeySet keys, const at::Tensor& self, Args... arguments) {
    at::Tensor view = Op::redispatch(keys & kBelowThatKey, self, arguments...);
    if (!is_tracked(self)) return view;
    give_function(view, self, [&](std::shared_ptr<RecordedView> of) {
      return std::make_shared<TypedView>(std::move(of), arguments...);
    });
    return view;
  }

  std::tuple<typename Owned<Args>::Type...> args;
};

// For an operator of TypedViews its own kernel, else the boxed one.
template <typename... Ops>
c10::KernelFunction kernel_for(const c10::OperatorName& name, Operators<Ops...>) {
  auto kernel = c10::KernelFunction::makeFromBoxedFunction<&run_view>();
  const auto choose = [&](auto run, const char* op, const char* overload) {
    if (name.name == op && name.overload_name == overload) kernel = c10::KernelFunction::makeFromUnboxedFunction(run);
  };
  (choose(TORCH_FN((TypedView<Ops>::run)), Ops::name, Ops::overload_name), ...);
  return kernel;
}

// Of a single tensor only: a dual number is not a view of its primal in backward.
bool is_view_to_autograd(const c10::OperatorHandle& op) {
  static constexpr std::array<std::string_view, 3> kOthers{"aten::detach", "aten::_make_dual", "aten::_fw_primal"};
  const auto& schema = op.schema();
  if (schema.arguments().empty() || schema.arguments()[0].type()->kind() != c10::TypeKind::TensorType) return false;
  if (schema.returns().size() != 1) return false;
  const auto* alias = schema.returns()[0].alias_info();
  return alias != nullptr && !alias->isWrite() && op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView) &&
         !op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) &&
         std::find(kOthers.begin(), kOthers.end(), schema.name()) == kOthers.end();
}

// For ATen's view operators.
std::optional<c10::KernelFunction> view_kernel(const c10::OperatorHandle& op) {
  if (!is_view_to_autograd(op)) return std::nullopt;
  return kernel_for(op.operator_name(), TypedViews());
}

const bool views_registered = (register_above_autograd(&view_kernel, "dtensor: how views are taken again"), true);

}  // namespace
}  // namespace dtensor::internal
