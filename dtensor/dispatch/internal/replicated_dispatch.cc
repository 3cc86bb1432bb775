#include "dtensor/dispatch/internal/replicated_dispatch.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>

#include "absl/algorithm/container.h"
#include "dtensor/dispatch/internal/rewind_generator.h"
#include "dtensor/dispatch/out_tensor.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"
#include "dtensor/tensor/view_window.h"
#include "dtensor/views/view_call.h"
#include "propagation/trial_run.h"

namespace dtensor::internal {
namespace {

using torch::jit::Stack;

// Whether it is replicated: a part is the tensor itself.
bool is_whole(const at::Tensor& t) {
  const Spec& spec = *spec_of(t);
  for (int64_t d = 0; d < spec.mesh().ndim(); ++d) {
    if (spec.mesh().size(d) > 1 && !spec.placements()[d].is_replicate()) return false;
  }
  return true;
}

// One call. Runs rank by rank, or once with meta tensors if this process has no ranks.
class ReplicatedCall {
 public:
  ReplicatedCall(const OpInfo& info, const Inputs& in, c10::ArrayRef<c10::IValue> args)
      : info_(info), in_(in), args_(args) {}

  Stack run() {
    gather();
    find_written();
    for (size_t k = 0; k < in_.tensors.size() && !info_.is_view; ++k) {
      if (in_.tensors[k].defined() && !written_[k]) lay_as(in_.tensors[k], locals_[k]);
    }
    std::vector<Stack> results(locals_count());
    {
      LocalGuard guard;
      for (size_t r = 0; r < results.size(); ++r) run_on(r, results[r]);
    }
    bring_back();
    return global_results(results);
  }

 private:
  bool has_data() const { return !in_.mesh.local_ranks().empty(); }
  size_t locals_count() const { return has_data() ? in_.mesh.local_ranks().size() : 1; }
  Placements whole() const { return Placements(in_.mesh.ndim(), Replicate()); }
  CommCause cause(size_t k) const {
    return {info_.name, arg_name(info_, in_, static_cast<int>(k)), module_of_call(in_.tensors), true};
  }

  void gather() {
    locals_.resize(in_.tensors.size());
    gathered_.resize(in_.tensors.size());
    for (size_t k = 0; k < in_.tensors.size(); ++k) {
      const at::Tensor& t = in_.tensors[k];
      if (!t.defined()) continue;
      gathered_[k] = !is_whole(t);
      if (gathered_[k] && info_.args[in_.arg_of[k]].overwritten) {
        locals_[k] = memory_for(t);
        continue;
      }
      const at::Tensor all = gathered_[k] ? redistribute_below_autograd(t, whole(), cause(k)) : t;
      locals_[k] =
          has_data() ? (info_.is_view ? meta_for_write(all) : meta_for_read(all)).locals : RankTensors{stand_in(t)};
    }
  }

  // Local memory may have other strides than the whole tensor's, which kernels or their callers depend on. A conjugated
  // or negated tensor keeps its lazy bit when gathered: LibTorch resolves it to dense memory before it calls kernels
  // without support for it.
  static void lay_as(const at::Tensor& t, RankTensors& locals) {
    LocalGuard guard;
    const ConjNegBits bits = conj_neg_bits(meta_without_sync(t).locals);
    for (at::Tensor& local : locals) {
      if (local.strides() == t.strides() && conj_neg_bits(local) == bits) continue;
      const at::Tensor memory = with_conj_neg(at::empty_strided(t.sizes(), t.strides(), local.options()), bits);
      copy_values(memory, local);
      local = memory;
    }
  }

  // Memory for a whole argument that is written without being read. Zeros, so that ranks agree on elements that the
  // operator leaves unchanged.
  RankTensors memory_for(const at::Tensor& t) const {
    LocalGuard guard;
    if (!has_data()) return {stand_in(t)};
    RankTensors result;
    for (const at::Tensor& local : meta_for_write(t).locals)
      result.push_back(at::empty_strided(t.sizes(), t.strides(), local.options()).zero_());
    return result;
  }

  static at::Tensor stand_in(const at::Tensor& t) {
    LocalGuard guard;
    return at::empty_strided(t.sizes(), t.strides(), t.options().device(c10::DeviceType::Meta));
  }

  // The kernel gets separate tensors over the same memory, so that changing an argument's size in the kernel cannot
  // corrupt it.
  void find_written() {
    written_.resize(in_.tensors.size());
    LocalGuard guard;
    for (size_t a = 0; a < args_.size(); ++a) {
      if (!info_.args[a].written && !writes_unsaid(a)) continue;
      for (int k = in_.slots[a].first; k < in_.slots[a].first + in_.slots[a].count; ++k) {
        if (!in_.tensors[k].defined()) continue;
        written_[k] = true;
        const bool own = gathered_[k] && info_.args[a].overwritten;  // see memory_for()
        for (auto& local : locals_[k]) local = own ? local : gathered_[k] ? local.clone() : local.detach();
        // Arguments that the schema declares as written are handled by dispatch().
        if (!info_.args[a].written) check_write(in_.tensors[k], info_.name);
      }
    }
  }

  // LibTorch's batch norm kernels write to the running statistics in training, which their schemas do not declare.
  bool writes_unsaid(size_t a) const {
    const std::string& argument = info_.op.schema().arguments()[a].name();
    if (argument != "running_mean" && argument != "running_var") return false;
    static constexpr std::string_view kOperators[] = {
        "aten::native_batch_norm",       "aten::cudnn_batch_norm",        "aten::miopen_batch_norm",
        "aten::batch_norm_update_stats", "aten::batch_norm_gather_stats", "aten::batch_norm_gather_stats_with_counts"};
    if (!absl::c_linear_search(kOperators, info_.op.schema().name())) return false;
    const auto training = info_.op.schema().argumentIndexWithName("training");
    return !training || !args_[*training].isBool() || args_[*training].toBool();
  }

  void run_on(size_t r, Stack& stack) {
    fill_local_stack(stack, in_, args_, locals_, r);
    if (info_.device_arg >= 0 && stack[info_.device_arg].isDevice()) set_device(stack[info_.device_arg], r);
    const auto before = written_shapes(r);
    if (info_.op.hasTag(at::Tag::nondeterministic_seeded)) {
      draws_.run(info_.op, device(r), stack, [&] { call(stack); });
    } else {
      call(stack);
    }
    check_shapes(r, before);
  }

  // Ranks may have several devices of one type.
  void set_device(c10::IValue& device, size_t r) const {
    if (!has_data()) {
      device = c10::Device(c10::DeviceType::Meta);
    } else if (const auto own = in_.mesh.world().device(in_.mesh.local_ranks()[r]);
               own.type() == device.toDevice().type()) {
      device = own;
    }
  }

  c10::Device device(size_t r) const {
    return has_data() ? in_.mesh.world().device(in_.mesh.local_ranks()[r]) : c10::Device(c10::DeviceType::CPU);
  }

  void call(Stack& stack) {
    if (has_data()) return info_.op.callBoxed(stack);
    try {
      info_.op.callBoxed(stack);
    } catch (const c10::Error& e) {
      TORCH_CHECK_NOT_IMPLEMENTED(
          false, info_.name, ": has no sharding strategy, and this process owns no rank of ", in_.mesh.to_string(),
          ", so it has no data to run it on (an abstract world has none); its meta kernel says: ",
          e.what_without_backtrace());
    }
  }

  std::vector<TensorMeta> written_shapes(size_t r) const {
    std::vector<TensorMeta> result;
    for (size_t k = 0; k < written_.size(); ++k) {
      if (written_[k]) result.push_back(read_meta(locals_[k][r]));
    }
    return result;
  }

  void check_shapes(size_t r, const std::vector<TensorMeta>& before) const {
    size_t i = 0;
    for (size_t k = 0; k < written_.size(); ++k) {
      if (!written_[k]) continue;
      const at::Tensor& now = locals_[k][r];
      const TensorMeta& was = before[i++];
      if (may_be_resized(k) || (now.numel() == 0 && now.sizes() == c10::IntArrayRef(was.sizes))) continue;
      const bool moved = has_data() && !gathered_[k] && !now.is_alias_of(meta_for_write(in_.tensors[k]).locals[r]);
      TORCH_CHECK_NOT_IMPLEMENTED(read_meta(now) == was && !moved, info_.name,
                                  ": changes the size, strides or memory of argument '",
                                  arg_name(info_, in_, static_cast<int>(k)), "', of shape ",
                                  c10::IntArrayRef(was.sizes.data(), was.sizes.size()), " before and ", now.sizes(),
                                  " after. A distributed tensor keeps its size: pass one of the right size, or use the "
                                  "form that returns a new tensor.");
    }
  }

  // As in LibTorch: an out= tensor without elements is resized to the result.
  bool may_be_resized(size_t k) const {
    return info_.args[in_.arg_of[k]].out && !gathered_[k] && may_grow(in_.tensors[k]);
  }

  // Copies a written gathered copy back to the tensor's own parts.
  void bring_back() {
    for (size_t k = 0; k < written_.size(); ++k) {
      if (!written_[k]) continue;
      const at::Tensor& t = in_.tensors[k];
      const at::Tensor& now = locals_[k].front();
      if (now.sizes() != t.sizes()) {
        replace_contents(t, Spec::get(in_.mesh, whole(), read_meta(now)), has_data() ? locals_[k] : RankTensors());
      }
      if (gathered_[k]) {
        const Spec& spec = *spec_of(t);
        const at::Tensor result =
            make_dtensor(spec_of(t)->with_placements(whole()), has_data() ? locals_[k] : RankTensors());
        const at::Tensor cut = redistribute_below_autograd(result, spec.placements(), cause(k));
        LocalGuard guard;
        for (size_t r = 0; r < meta_without_sync(t).locals.size(); ++r)
          meta_for_write(t).locals[r].copy_(meta_for_read(cut).locals[r]);
      }
      note_write(t, info_.name);
    }
  }

  Stack global_results(std::vector<Stack>& results) {
    Stack global;
    for (size_t i = 0; i < results.front().size(); ++i) {
      if (i < info_.written_inputs.size() && info_.written_inputs[i] >= 0) {
        global.push_back(args_[info_.written_inputs[i]]);
        continue;
      }
      global.push_back(global_result(results, i));
    }
    return global;
  }

  c10::IValue global_result(const std::vector<Stack>& results, size_t i) const {
    const c10::IValue& first = results.front()[i];
    if (first.isTensor()) {
      return wrap(i, [&](size_t r) { return results[r][i].toTensor(); });
    }
    const auto& type = info_.op.schema().returns()[i].type();
    if (!first.isList() || type->str().find("Tensor") == std::string::npos) return first;
    c10::List<at::Tensor> tensors;
    for (size_t j = 0; j < first.toListRef().size(); ++j) {
      tensors.push_back(wrap(i + j, [&](size_t r) { return results[r][i].toListRef()[j].toTensor(); }));
    }
    return tensors;
  }

  // `local(r)`: the result on the r-th owned rank; the operator's tensor `result`, those of lists one by one.
  template <typename Local>
  at::Tensor wrap(size_t result, const Local& local) const {
    const at::Tensor first = local(0);
    if (!first.defined()) return at::Tensor();
    TORCH_CHECK_NOT_IMPLEMENTED(first.layout() == c10::kStrided && !first.is_quantized(), info_.name,
                                ": gives a tensor of layout ", first.layout(),
                                (first.is_quantized() ? ", quantized" : ""),
                                ", which cannot be distributed; call it on full_tensor(t).");
    RankTensors locals;
    for (size_t r = 0; r < in_.mesh.local_ranks().size(); ++r) {
      locals.push_back(local(r));
      TORCH_CHECK(locals[r].sizes() == first.sizes(), info_.name, ": gave a result of shape ", locals[r].sizes(),
                  " on rank ", in_.mesh.local_ranks()[r], " and of shape ", first.sizes(), " on rank ",
                  in_.mesh.local_ranks()[0], ", so its replicated arguments hold different values on these ranks.");
    }
    SpecPtr spec = Spec::get(in_.mesh, whole(), read_meta(first));
    for (size_t k = 0; k < locals_.size(); ++k) {
      const size_t a = in_.arg_of[k];
      if (in_.slots[a].kind != ArgSlot::Kind::kTensor || !in_.tensors[k].defined()) continue;
      const at::Tensor& base = locals_[k].front();
      if (!shares_memory(first, base)) continue;
      return make_view_of({info_.op, args_, a, result, whole()}, std::move(spec), std::move(locals),
                          first.storage_offset() - base.storage_offset(), gathered_[k]);
    }
    return make_dtensor(std::move(spec), std::move(locals));
  }

  static bool shares_memory(const at::Tensor& a, const at::Tensor& b) {
    return a.has_storage() && b.has_storage() && a.is_alias_of(b);
  }

  const OpInfo& info_;
  const Inputs& in_;
  const c10::ArrayRef<c10::IValue> args_;
  std::vector<RankTensors> locals_;  // per input, whole
  std::vector<bool> gathered_;       // per input: gathered to a copy
  std::vector<bool> written_;        // per input
  RewindGenerator draws_;
};

}  // namespace

void run_replicated(const OpInfo& info, const Inputs& in, Stack& stack) {
  bool whole = true;  // whether all its inputs are whole; out= gets its part of the result
  for (size_t k = 0; k < in.tensors.size() && whole; ++k) {
    whole = !in.tensors[k].defined() || is_whole(in.tensors[k]) || info.args[in.arg_of[k]].out;
  }
  if (!whole && !current_dispatch_scope().replicate_unsupported) throw_missing_rule(info, in);
  Stack results = ReplicatedCall(info, in, torch::jit::last(stack, info.args.size())).run();
  torch::jit::drop(stack, info.args.size());
  for (auto& r : results) stack.push_back(std::move(r));
}

}  // namespace dtensor::internal
