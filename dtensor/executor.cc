#include "dtensor/executor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "dtensor/representation.h"
#include "mesh/memory_meter.h"

namespace dtensor {
namespace {

using Kind = RedistributeStep::Kind;
using Blocks = std::vector<Block>;

at::IntArrayRef sizes_ref(const Shape& shape) { return {shape.data(), shape.size()}; }

at::Tensor part_of(const at::Tensor& local, const Shape& offsets, const Shape& sizes) {
  int64_t start = local.storage_offset();
  for (size_t d = 0; d < sizes.size(); ++d) start += offsets[d] * local.stride(static_cast<int64_t>(d));
  return local.as_strided(sizes_ref(sizes), local.strides(), start);
}

// Blocks of one part of the tensor travel as one piece: nothing, a view if it is one block, else all flattened in
// order. Sender and receiver work out the same blocks.
Shape piece_shape(const Blocks& blocks) {
  if (blocks.size() == 1) return blocks[0].sizes;
  int64_t numel = 0;
  for (const Block& block : blocks) {
    int64_t n = 1;
    for (int64_t size : block.sizes) n *= size;
    numel += n;
  }
  return {numel};
}

at::Tensor pack(const at::Tensor& local, const Blocks& blocks) {
  if (blocks.empty()) return at::empty({0}, local.options());
  if (blocks.size() == 1) return part_of(local, blocks[0].from, blocks[0].sizes);
  std::vector<at::Tensor> flat;
  for (const Block& block : blocks) flat.push_back(part_of(local, block.from, block.sizes).reshape({-1}));
  return at::cat(flat);
}

void unpack(const at::Tensor& piece, const Blocks& blocks, const at::Tensor& out) {
  if (blocks.size() == 1) {
    part_of(out, blocks[0].to, blocks[0].sizes).copy_(piece.reshape(sizes_ref(blocks[0].sizes)));
    return;
  }
  int64_t offset = 0;
  for (const Block& block : blocks) {
    at::Tensor to = part_of(out, block.to, block.sizes);
    to.copy_(piece.narrow(0, offset, to.numel()).reshape(to.sizes()));
    offset += to.numel();
  }
}

// One step on all owned ranks.
class StepRunner {
 public:
  StepRunner(const RedistributeStep& step, const Spec& spec, const CommCause& cause)
      : step_(step),
        spec_(spec),
        ranks_(spec.mesh().local_ranks()),
        group_(spec.mesh().group(step.dims)),
        communicator_(spec.mesh().world().communicator()) {
    call_.group = &group_;
    call_.ranks = ranks_;
    call_.event.cause = cause;
    call_.event.mesh_dims = group_.name;
    call_.event.group_size = group_.size;
    call_.event.bytes = step.bytes;
    call_.event.dtype = spec.dtype();
  }

  RankTensors run(const RankTensors& locals) {
    switch (step_.kind) {
      case Kind::kSlice:
        return slice(locals);
      case Kind::kFill:
        return fill(locals);
      case Kind::kAllReduce:
        return all_reduce(locals);
      case Kind::kReduceScatter:
        return reduce_scatter(locals);
      case Kind::kAllGather:
        return all_gather(locals);
      case Kind::kAllToAll:
        return all_to_all(locals);
    }
    TORCH_INTERNAL_ASSERT(false);
  }

 private:
  using LayoutTable = absl::flat_hash_map<int64_t, LocalLayout>;

  const LocalLayout& layout(LayoutTable& table, const Placements& placements, int64_t rank) {
    auto [it, is_new] = table.try_emplace(rank);
    if (is_new) {
      const DeviceMesh& mesh = spec_.mesh();
      it->second = local_layout(spec_.sizes(), mesh.shape(), placements, mesh.coordinate(rank));
    }
    return it->second;
  }
  // What `sender` has before the step of what `receiver` has after it. The members of a group hold, before, disjoint
  // parts of all that they need after.
  Blocks shared(int64_t sender, int64_t receiver) {
    layout(before_, step_.before,
           sender);  // a table may move its values when it grows: fill first, then take references
    return overlap(before_.at(sender), layout(after_, step_.after, receiver));
  }
  const std::vector<int64_t>& members(int64_t rank) const { return group_.members[group_.group_of[rank]]; }
  at::Tensor new_output(int64_t rank, const at::Tensor& local) {
    return at::empty(sizes_ref(layout(after_, step_.after, rank).sizes()), local.options());
  }

  RankTensors slice(const RankTensors& locals) {
    RankTensors out;
    for (size_t i = 0; i < locals.size(); ++i) {
      out.push_back(new_output(ranks_[i], locals[i]));
      const Blocks blocks = shared(ranks_[i], ranks_[i]);
      for (const Block& block : blocks) {
        part_of(out[i], block.to, block.sizes).copy_(part_of(locals[i], block.from, block.sizes));
      }
    }
    return out;
  }

  RankTensors fill(const RankTensors& locals) {
    RankTensors out;
    for (size_t i = 0; i < locals.size(); ++i) {
      const at::Tensor& local = locals[i];
      const bool first = group_.position_of[ranks_[i]] == 0;
      if (!first && step_.op == ReduceOp::kSum) {
        out.push_back(at::zeros(local.sizes(), local.options()));
      } else if (!first && step_.op == ReduceOp::kProduct) {
        out.push_back(at::ones(local.sizes(), local.options()));
      } else {
        out.push_back(local.clone(at::MemoryFormat::Contiguous));
      }
    }
    return out;
  }

  RankTensors all_reduce(const RankTensors& locals) {
    return contiguous(communicator_.all_reduce(call_, contiguous(locals), step_.op));
  }

  RankTensors reduce_scatter(const RankTensors& locals) {
    RankPieces pieces(locals.size());
    for (size_t i = 0; i < locals.size(); ++i) {
      for (int64_t member : members(ranks_[i])) pieces[i].push_back(pack(locals[i], shared(ranks_[i], member)));
    }
    RankTensors out = communicator_.reduce_scatter(call_, pieces, step_.op);
    for (size_t i = 0; i < out.size(); ++i) {
      const Blocks blocks = shared(ranks_[i], ranks_[i]);
      if (blocks.size() != 1) {
        at::Tensor piece = std::exchange(out[i], new_output(ranks_[i], locals[i]));
        unpack(piece, blocks, out[i]);
      }
    }
    return contiguous(std::move(out));
  }

  RankTensors all_gather(const RankTensors& locals) {
    if (communicator_.needs_shapes()) {
      for (int64_t rank : ranks_) {
        auto& shapes = call_.receive_shapes.emplace_back();
        for (int64_t member : members(rank)) shapes.push_back(layout(before_, step_.before, member).sizes());
      }
    }
    const RankPieces pieces = communicator_.all_gather(call_, contiguous(locals));
    const bool side_by_side = step_.dims.size() == 1 && step_.before[step_.dims[0]].is_shard();
    RankTensors out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (side_by_side) {
        out.push_back(at::cat(pieces[i], step_.tensor_dim));
        continue;
      }
      out.push_back(new_output(ranks_[i], locals[i]));
      const auto& group = members(ranks_[i]);
      for (size_t p = 0; p < group.size(); ++p) {
        const Blocks blocks = shared(group[p], ranks_[i]);
        for (const Block& block : blocks) {
          part_of(out[i], block.to, block.sizes).copy_(part_of(pieces[i][p], block.from, block.sizes));
        }
      }
    }
    return out;
  }

  RankTensors all_to_all(const RankTensors& locals) {
    RankPieces send(locals.size());
    for (size_t i = 0; i < locals.size(); ++i) {
      for (int64_t member : members(ranks_[i])) {
        // What a rank keeps does not travel.
        send[i].push_back(pack(locals[i], member == ranks_[i] ? Blocks() : shared(ranks_[i], member)));
      }
    }
    if (communicator_.needs_shapes()) {
      for (int64_t rank : ranks_) {
        auto& shapes = call_.receive_shapes.emplace_back();
        for (int64_t member : members(rank)) {
          shapes.push_back(piece_shape(member == rank ? Blocks() : shared(member, rank)));
        }
      }
    }
    const RankPieces pieces = communicator_.all_to_all(call_, send);
    RankTensors out;
    for (size_t i = 0; i < pieces.size(); ++i) {
      out.push_back(new_output(ranks_[i], locals[i]));
      const auto& group = members(ranks_[i]);
      for (size_t p = 0; p < group.size(); ++p) {
        const Blocks blocks = shared(group[p], ranks_[i]);
        if (group[p] == ranks_[i]) {
          for (const Block& block : blocks) {
            part_of(out[i], block.to, block.sizes).copy_(part_of(locals[i], block.from, block.sizes));
          }
        } else if (!blocks.empty()) {
          unpack(pieces[i][p], blocks, out[i]);
        }
      }
    }
    return out;
  }

  static RankTensors contiguous(RankTensors tensors) {
    for (at::Tensor& t : tensors) t = t.contiguous();
    return tensors;
  }

  const RedistributeStep& step_;
  const Spec& spec_;
  const std::vector<int64_t>& ranks_;
  const Group& group_;
  Communicator& communicator_;
  CommCall call_;
  LayoutTable before_, after_;
};

}  // namespace

RankTensors run_plan(const RedistributePlan& plan, const Spec& spec, RankTensors locals, const CommCause& cause) {
  const DeviceMesh& mesh = spec.mesh();
  TORCH_CHECK(locals.size() == mesh.local_ranks().size(), "[redistribute] ", locals.size(), " local tensor(s) for ",
              mesh.local_ranks().size(), " owned rank(s) of ", mesh.to_string());
  LocalGuard guard;
  MemoryMeter& memory = mesh.world().memory();
  int64_t held_bytes = 0;  // the part of a step's peak that is counted as alive already: the input of the first step
  if (!plan.steps.empty()) {
    held_bytes = static_cast<int64_t>(c10::elementSize(spec.dtype()));
    const Shape origin(plan.from.size(), 0);
    for (int64_t n : local_shape(spec.sizes(), mesh.shape(), plan.from, origin)) held_bytes *= n;
  }
  for (const RedistributeStep& step : plan.steps) {
    locals = StepRunner(step, spec, cause).run(locals);
    memory.touch(step.peak_bytes - std::exchange(held_bytes, 0));
  }
  if (spec.meta().wrapped_number) {
    for (at::Tensor& local : locals) local.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return locals;
}

}  // namespace dtensor
