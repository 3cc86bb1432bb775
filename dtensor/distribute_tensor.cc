#include <ATen/ops/empty.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "comm/block_copy.h"
#include "comm/communicator.h"
#include "comm/scope.h"
#include "dtensor/dispatch/plain_beside_distributed.h"
#include "dtensor/redistribute.h"
#include "dtensor/redistribution/internal/executor.h"
#include "dtensor/redistribution/internal/redistribute_arguments.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/redistribute_below_autograd.h"
#include "dtensor/tensor/representation.h"
#include "plan/redistribute_planner.h"

namespace dtensor {
using namespace internal;

namespace {

Placements all_replicate(const DeviceMesh& mesh) { return Placements(mesh.ndim(), Replicate()); }

// From layout `before`, Replicate on mesh dim m, to `after`, which may shard m. Every rank's part comes from the rank
// at position `source` of its group along m; nullopt: from its own tensor.
RankTensors spread(const Spec& spec, const RankTensors& locals, const Placements& before, const Placements& after,
                   int64_t m, std::optional<int64_t> source, const CommCause& cause) {
  const DeviceMesh& mesh = spec.mesh();
  CommCall call;
  call.group = &mesh.get_group(m);
  call.ranks = mesh.local_ranks();
  call.event.cause = cause;
  call.event.dtype = spec.dtype();
  call.event.bytes = spec.with_placements(after)->max_local_bytes();
  if (source && (mesh.world().has_data() || has_listeners())) {
    call.event.layout_change =
        std::make_shared<const LayoutChange>(spec.dtype(), spec.sizes(), before, after, mesh.to_string());
  }
  const RankSlots owned(call);
  const auto part = [&](const Placements& placements, int64_t rank) {
    return local_layout(spec.sizes(), mesh.shape(), placements, mesh.coordinate(rank));
  };
  RankPieces inputs, outputs;
  std::vector<Message> messages;
  const auto add = [&](int64_t sender, int64_t receiver) {
    for (Block& block : overlap(part(before, sender), part(after, receiver))) {
      messages.push_back({sender, receiver, 0, 0, std::move(block)});
    }
  };
  for (size_t i = 0; i < locals.size(); ++i) {
    const int64_t rank = call.ranks[i];
    const Shape sizes = part(after, rank).sizes();
    inputs.push_back({locals[i]});
    outputs.push_back({at::empty(c10::IntArrayRef(sizes.data(), sizes.size()), locals[i].options())});
    const auto& members = call.group->members[call.group->group_of[rank]];
    const int64_t sender = source ? members[*source] : rank;
    add(sender, rank);
    for (int64_t member : members) {
      if (sender == rank && source && owned[member] < 0) add(rank, member);
    }
  }
  if (source) {
    std::stable_sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
      return std::tie(a.sender, a.receiver) < std::tie(b.sender, b.receiver);
    });
    const auto collective = after[m].is_sharded() ? Collective::kScatter : Collective::kBroadcast;
    mesh.world().communicator().exchange(call, collective, messages, inputs, outputs);
  } else {
    for (const Message& message : messages) {
      const int64_t i = owned[message.sender];
      copy_block(inputs[i][0], outputs[i][0], message.block);
    }
  }
  RankTensors parts;
  for (auto& output : outputs) parts.push_back(std::move(output[0]));
  return parts;
}

// Channels-last if the tensor is, else row-major. Parts have the same order as the whole.
TensorMeta meta_in_memory_format(const at::Tensor& t) {
  Shape strides = row_major_strides(t.sizes());
  const at::MemoryFormat format = t.suggest_memory_format();
  if (format != at::MemoryFormat::Contiguous) {
    const auto last = format == at::MemoryFormat::ChannelsLast ? c10::get_channels_last_strides_2d(t.sizes())
                                                               : c10::get_channels_last_strides_3d(t.sizes());
    strides.assign(last.begin(), last.end());
  }
  return {Shape(t.sizes().begin(), t.sizes().end()), strides, t.scalar_type()};
}

// A replicated leaf without data on any mesh of the same world: made by a factory inside a MeshScope of a meta mesh.
bool is_shape_alone(const at::Tensor& tensor, const DeviceMesh& mesh) {
  const Spec& spec = *spec_of(tensor);
  return mesh.world().is_meta() && spec.mesh() != mesh && spec.mesh().world() == mesh.world() && spec.is_replicated() &&
         tensor.is_leaf();
}

// The result for a tensor that is distributed already: one in another layout only if a factory made it.
at::Tensor distribute_again(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& to) {
  const Spec& spec = *spec_of(tensor);
  if (is_shape_alone(tensor, mesh)) {
    at::Tensor laid_out = make_dtensor(Spec::get(mesh, to, spec.meta()), {});
    laid_out.set_requires_grad(tensor.requires_grad());
    return laid_out;
  }
  if (spec.mesh() == mesh && spec.is_replicated() && tensor.is_leaf()) {  // made by a factory inside a MeshScope
    if (spec.placements() == to) return tensor;
    at::Tensor part = redistribute_below_autograd(tensor, to, explicit_cause("distribute_tensor"));
    part.set_requires_grad(tensor.requires_grad());
    return part;
  }
  TORCH_CHECK_VALUE(spec.mesh() == mesh && spec.placements() == to,
                    "[distribute_tensor] the tensor is distributed already as ", spec.to_string(), ", not as ",
                    to_string(to), " @ ", mesh.to_string(), "; use redistribute");
  return tensor;
}

}  // namespace

at::Tensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& given_mesh, const Placements& placements,
                             std::optional<int64_t> source_rank) {
  TORCH_CHECK_VALUE(given_mesh.defined(), "[distribute_tensor] no mesh");
  TORCH_CHECK(tensor.defined(), "[distribute_tensor] the tensor is undefined");
  TORCH_CHECK_NOT_IMPLEMENTED(!tensor.is_nested(), "[distribute_tensor] a nested tensor cannot be distributed. ",
                              kInPlaceOfNested);
  // A meta tensor is distributed over the meta mesh.
  const DeviceMesh mesh = tensor.is_meta() && given_mesh.world().has_data() ? given_mesh.meta() : given_mesh;
  const auto to = checked_placements(placements.empty() ? all_replicate(mesh) : placements, mesh, tensor.dim(),
                                     "distribute_tensor");
  if (is_dtensor(tensor)) return distribute_again(tensor, mesh, to);
  TORCH_CHECK(tensor.is_leaf(), "[distribute_tensor] the tensor of shape ", tensor.sizes(),
              " has autograd history: distribute the leaf, or pass tensor.detach()");
  for (int64_t m = 0; source_rank && m < mesh.ndim(); ++m) {
    TORCH_CHECK_VALUE(*source_rank >= 0 && *source_rank < mesh.size(m), "[distribute_tensor] source_rank ",
                      *source_rank, " is not a position along mesh dim '", mesh.names()[m], "' of size ", mesh.size(m));
  }
  const SpecPtr spec = Spec::get(mesh, to, meta_in_memory_format(tensor));

  RankTensors locals;
  {
    LocalGuard guard;
    for (int64_t rank : mesh.local_ranks()) locals.push_back(tensor.detach().to(mesh.world().device(rank)));
    Placements done(mesh.ndim(), Replicate());
    for (int64_t m = 0; m < mesh.ndim(); ++m) {
      const Placements before = done;
      if (to[m].is_sharded()) done[m] = to[m];
      if (!source_rank && done == before) continue;
      locals = spread(*spec, locals, before, done, m, source_rank, explicit_cause("distribute_tensor"));
    }
    // A rank's part must not share memory with the caller's tensor or another rank's.
    if (!source_rank && done == all_replicate(mesh)) {
      for (auto& local : locals) local = local.clone(tensor.suggest_memory_format());
    }
    if (spec->has_partial()) {
      const auto plan = plan_redistribution(mesh, spec->meta(), done, to);
      locals = run_plan(plan, std::move(locals), explicit_cause("distribute_tensor"));
    }
    for (auto& local : locals) local = local.contiguous(tensor.suggest_memory_format());
  }
  at::Tensor result = make_dtensor(spec, std::move(locals));
  (void)result.has_storage();  // so that a parameter that becomes it by set_data() reports it when its data is accessed
  result.set_requires_grad(tensor.requires_grad());
  return result;
}

}  // namespace dtensor
