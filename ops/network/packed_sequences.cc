#include "ops/network/packed_sequences.h"

#include <ATen/ops/_pack_padded_sequence.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/transpose.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/tensor/representation.h"
#include "ops/network/packed_rows.h"
#include "ops/support/arguments.h"
#include "ops/support/plain_numbers.h"
#include "propagation/rule_registry.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;
using Ints = std::vector<int64_t>;

// ------------------------------------------------------------ padded forms that are known

uint64_t writes_of(const at::Tensor& t) { return meta_without_sync(t).storage->writes.load(std::memory_order_relaxed); }

// The padded tensors of the packed data that belong to one batch_sizes: kept by that plain tensor and its copies.
class PaddedForms final : public c10::BackendMeta {
 public:
  void add(const at::Tensor& data, const at::Tensor& padded) {
    const DTensorMeta& meta = meta_without_sync(padded);
    // Another handle, without autograd's history, that does not count as a user of the memory.
    const at::Tensor handle =
        make_view(meta.spec, meta.locals, padded, padded.storage_offset(), meta.storage, meta.arriving);
    std::vector<Form> gone;
    std::lock_guard lock(mutex_);
    const auto first =
        std::stable_partition(forms_.begin(), forms_.end(), [](const Form& f) { return !f.of.expired(); });
    gone.assign(std::make_move_iterator(first), std::make_move_iterator(forms_.end()));
    forms_.erase(first, forms_.end());
    const auto of = data.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
    forms_.push_back(
        {c10::weak_intrusive_ptr<c10::BackendMeta>(of), of.get(), writes_of(data), handle, writes_of(handle)});
  }

  // Undefined: not known, or one of the two was written to since.
  at::Tensor find(const at::Tensor& data) const {
    const auto* of = data.unsafeGetTensorImpl()->get_backend_meta();
    std::lock_guard lock(mutex_);
    for (const Form& f : forms_) {
      if (f.meta != of || f.of.expired()) continue;
      if (f.writes == writes_of(data) && f.padded_writes == writes_of(f.padded)) return f.padded;
    }
    return {};
  }

 private:
  struct Form {
    c10::weak_intrusive_ptr<c10::BackendMeta> of;
    const c10::BackendMeta* meta;
    uint64_t writes;
    at::Tensor padded;
    uint64_t padded_writes;
  };
  mutable std::mutex mutex_;
  std::vector<Form> forms_;
};

PaddedForms* forms_of(const at::Tensor& batch_sizes) {
  return is_dtensor(batch_sizes) ? nullptr
                                 : dynamic_cast<PaddedForms*>(batch_sizes.unsafeGetTensorImpl()->get_backend_meta());
}

void remember(const at::Tensor& batch_sizes, const at::Tensor& data, const at::Tensor& padded) {
  if (PaddedForms* forms = forms_of(batch_sizes)) forms->add(data, padded);
}

at::Tensor known_padded(const at::Tensor& data, const at::Tensor& batch_sizes) {
  const PaddedForms* forms = forms_of(batch_sizes);
  return forms == nullptr ? at::Tensor() : forms->find(data);
}

bool has_whole_steps(const at::Tensor& padded) {
  const Placements& placements = spec_of(padded)->placements();
  return std::all_of(placements.begin(), placements.end(),
                     [](const Placement& p) { return p.is_replicate() || (p.is_sharded() && p.dim() > 0); });
}

at::Tensor padded_of(const at::Tensor& data, const at::Tensor& batch_sizes, int64_t steps, double padding) {
  const Ints sizes = numbers_of_rows(batch_sizes);
  const at::Tensor known = known_padded(data, batch_sizes);
  const bool is_known = known.defined() && has_whole_steps(known);
  return is_known ? pad_again(known, sizes, steps, padding) : pad_rows(data, sizes, steps, padding);
}

// ------------------------------------------------------------ above autograd

struct PadFn : torch::autograd::Function<PadFn> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& data,
                            const at::Tensor& batch_sizes, int64_t steps, double padding) {
    ctx->saved_data["batch_sizes"] = batch_sizes;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return padded_of(data, batch_sizes, steps, padding);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const at::Tensor none;
    if (!grads[0].defined()) return {none, none, none, none};
    return {pack_padded(grads[0], ctx->saved_data["batch_sizes"].toTensor()), none, none, none};
  }
};

// _pack_padded_sequence(input, lengths, batch_first), below autograd.
void pack(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor input = args.tensor("input"), given = args.tensor("lengths");
  const std::string name = c10::toString(op.operator_name());
  if (!is_dtensor(input)) throw_plain_beside_distributed(name, "input", input, spec_of(given)->mesh());
  const at::Tensor lengths = plain_numbers(given, op, "lengths");
  const at::Tensor padded = args["batch_first"].toBool() ? at::transpose(input, 0, 1) : input;
  TORCH_CHECK(padded.dim() >= 2, name, ": the input must be [steps, batch, ...], but has shape ", input.sizes());
  at::Tensor batch_sizes;
  {
    LocalGuard guard;  // ATen's own checks, and its numbers
    const at::Tensor without_features = at::empty({padded.size(0), padded.size(1), 1}, at::kByte);
    batch_sizes = std::get<1>(at::_pack_padded_sequence(without_features, lengths, /*batch_first=*/false));
    batch_sizes.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<PaddedForms>());
  }
  const at::Tensor data = pack_rows(padded, numbers_of_rows(batch_sizes));
  remember(batch_sizes, data, padded);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(data);
  stack.emplace_back(batch_sizes);
}

// _pack_padded_sequence_backward(grad, input_size, batch_sizes, batch_first).
void pack_backward(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const bool batch_first = args["batch_first"].toBool();
  const int64_t steps = args["input_size"].toIntVector()[batch_first ? 1 : 0];
  const at::Tensor padded = pad_packed(args.tensor("grad"), args.tensor("batch_sizes"), steps, 0);
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(batch_first ? padded.transpose(0, 1) : padded);
}

// _pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length).
void pad(const c10::OperatorHandle& op, Stack& stack) {
  const Arguments args(op, stack);
  const at::Tensor batch_sizes = args.tensor("batch_sizes");
  const Ints sizes = numbers_of_rows(batch_sizes);
  const int64_t longest = static_cast<int64_t>(sizes.size()), total_length = args["total_length"].toInt();
  TORCH_CHECK(longest > 0, op.operator_name(), ": batch_sizes must have one number or more");
  TORCH_CHECK(total_length <= 0 || total_length >= longest,
              "Expected total_length to be at least the length of the longest sequence in input, but got total_length=",
              total_length, " and max sequence length being ", longest);
  const bool batch_first = args["batch_first"].toBool();
  const at::Tensor padded =
      pad_packed(args.tensor("data"), batch_sizes, std::max(longest, total_length), args.number("padding_value"));
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(batch_first ? padded.transpose(0, 1) : padded);
  stack.emplace_back(lengths_of(sizes));
}

}  // namespace

at::Tensor pad_packed(const at::Tensor& data, const at::Tensor& batch_sizes, int64_t steps, double padding) {
  return PadFn::apply(data, batch_sizes, steps, padding);
}

at::Tensor pack_padded(const at::Tensor& padded, const at::Tensor& batch_sizes) {
  const at::Tensor lengths = lengths_of(numbers_of_rows(batch_sizes));
  const at::Tensor data = std::get<0>(at::_pack_padded_sequence(padded, lengths, /*batch_first=*/false));
  remember(batch_sizes, data, padded);
  return data;
}

bool splits_batch(const at::Tensor& data, const at::Tensor& batch_sizes) {
  const at::Tensor padded = is_dtensor(data) ? known_padded(data, batch_sizes) : at::Tensor();
  if (!padded.defined() || !has_whole_steps(padded)) return false;
  const Placements& placements = spec_of(padded)->placements();
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p == Shard(1); });
}

const RuleFamily packed_sequences_handlers("packed_sequences", [](RuleRegistry& registry) {
  registry.add_handler("aten::_pack_padded_sequence", pack);
  registry.add_handler("aten::_pack_padded_sequence_backward", pack_backward);
  registry.add_handler("aten::_pad_packed_sequence", pad);
});

}  // namespace dtensor::internal
