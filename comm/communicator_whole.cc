// The collectives that allocate their results: each lists the pieces to send, the rest is one exchange.
#include <ATen/ops/empty.h>
#include <c10/core/TensorOptions.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "comm/communicator.h"
#include "comm/communicator_checks.h"

namespace dtensor::internal {
namespace {

RankPieces as_pieces(const RankTensors& tensors) {
  RankPieces pieces;
  pieces.reserve(tensors.size());
  for (const at::Tensor& t : tensors) pieces.emplace_back(1, t);
  return pieces;
}

// The only tensor of every rank.
RankTensors as_tensors(RankPieces pieces) {
  RankTensors tensors;
  tensors.reserve(pieces.size());
  for (auto& of_rank : pieces) tensors.push_back(std::move(of_rank.at(0)));
  return tensors;
}

int64_t position(const CommCall& call, size_t i) { return call.group->position_of[call.ranks[i]]; }

void check_source(Collective c, const CommCall& call, int64_t source, size_t count) {
  check_ranks(c, call, count);
  check_position(c, call, "source", source);
}

// The tensor whose shape a piece has: the piece itself, if the sender is owned, else the receiver's tensor at
// `like_index`. Null: there is none.
const at::Tensor* like_of(Collective c, const RankPieces& inputs, int64_t sender, int64_t sender_slot, int64_t input,
                          int64_t receiver_slot, int64_t like_index) {
  if (sender_slot >= 0) {
    const auto& sent = inputs[sender_slot];
    TORCH_CHECK(input < static_cast<int64_t>(sent.size()), to_string(c), ": rank ", sender, " passes ", sent.size(),
                " pieces");
    check_defined(c, sender, sent[input]);
    return &sent[input];
  }
  const auto& own = inputs[receiver_slot];
  return like_index < static_cast<int64_t>(own.size()) && own[like_index].defined() ? &own[like_index] : nullptr;
}

Shape shape_like(Collective c, int64_t receiver, const at::Tensor* like) {
  TORCH_CHECK(like != nullptr, to_string(c), ": rank ", receiver,
              " passes no tensor whose shape its result could have; fill in call.receive_shapes");
  return Shape(like->sizes().begin(), like->sizes().end());
}

// `count_of`: how many pieces the rank at a position receives.
void check_receive_shapes(Collective c, const CommCall& call, const std::function<size_t(int64_t position)>& count_of) {
  if (call.receive_shapes.empty()) return;
  TORCH_CHECK(call.receive_shapes.size() == call.ranks.size(), to_string(c), ": receive_shapes has ",
              call.receive_shapes.size(), " entries for ", call.ranks.size(), " owned ranks; give one per rank");
  for (size_t i = 0; i < call.ranks.size(); ++i) {
    const size_t count = count_of(position(call, i));
    TORCH_CHECK(call.receive_shapes[i].size() == count, to_string(c), ": receive_shapes of rank ", call.ranks[i],
                " has ", call.receive_shapes[i].size(), " shapes; the rank receives ", count);
  }
}

}  // namespace

// One piece that a rank receives: input `input` of the rank at position `sender`. If its shape is not given it is as
// large as input `like` of the receiver.
struct Communicator::Source {
  int64_t sender, input, like;
};

// `sources_of` lists what the rank at a position receives.
RankPieces Communicator::exchange_whole(const CommCall& call, Collective c, const RankPieces& inputs,
                                        const SourcesOf& sources_of) {
  const RankSlots slots(call);
  std::vector<Source> sources;
  const auto find_sources = [&](int64_t position) {
    sources.clear();
    sources_of(position, sources);
    return sources.size();
  };
  check_receive_shapes(c, call, find_sources);

  RankPieces outputs(call.ranks.size());
  std::vector<Message> messages;
  const auto receive = [&](const std::vector<int64_t>& members, int64_t receiver) {
    const int64_t slot = slots[receiver];
    for (size_t k = 0; k < sources.size(); ++k) {
      const auto& [from, input, like_index] = sources[k];
      const int64_t sender = members[from];
      if (slot < 0 && slots[sender] < 0) continue;
      const at::Tensor* like = like_of(c, inputs, sender, slots[sender], input, slot, like_index);
      const bool is_said = slots[sender] < 0 && !call.receive_shapes.empty();
      Shape shape = is_said ? call.receive_shapes[slot][k] : shape_like(c, receiver, like);
      if (slot >= 0) {
        const auto dtype = like != nullptr ? like->scalar_type() : call.event.dtype;
        outputs[slot].push_back(
            at::empty({shape.data(), shape.size()}, at::TensorOptions().dtype(dtype).device(device(receiver))));
      }
      const Shape origin(shape.size(), 0);
      messages.push_back({sender, receiver, input, static_cast<int64_t>(k), {origin, origin, std::move(shape)}});
    }
  };
  std::vector<char> seen(call.group->members.size());
  for (int64_t rank : call.ranks) {
    const int64_t group = call.group->group_of[rank];
    if (std::exchange(seen[group], 1)) continue;
    const auto& members = call.group->members[group];
    for (size_t p = 0; p < members.size(); ++p) {
      find_sources(static_cast<int64_t>(p));
      receive(members, members[p]);
    }
  }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver, a.input, a.output) < std::tie(b.sender, b.receiver, b.input, b.output);
  });
  exchange(call, c, messages, inputs, outputs);
  return outputs;
}

RankPieces Communicator::all_gather(const CommCall& call, const RankTensors& inputs) {
  constexpr auto c = Collective::kAllGather;
  check_ranks(c, call, inputs.size());
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i]; });
  return exchange_whole(call, c, as_pieces(inputs), [&](int64_t, std::vector<Source>& sources) {
    for (int64_t p = 0; p < call.group->size; ++p) sources.push_back({p, 0, 0});
  });
}

RankTensors Communicator::all_reduce(const CommCall& call, const RankTensors& inputs, ReduceOp op) {
  return as_tensors(all_reduce_many(call, as_pieces(inputs), op));
}

RankTensors Communicator::reduce_scatter(const CommCall& call, const RankPieces& inputs, ReduceOp op) {
  constexpr auto c = Collective::kReduceScatter;
  check_ranks(c, call, inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) check_pieces(c, call, inputs, i);
  for (int64_t p = 0; p < call.group->size; ++p) {
    check_agreement(c, call, /*shapes=*/true, [&](size_t i) -> const at::Tensor& { return inputs[i][p]; });
  }
  const RankSlots slots(call);
  RankPieces outputs;
  std::vector<Message> messages;
  const auto add = [&](int64_t sender, int64_t receiver, int64_t input, const at::Tensor& piece) {
    const Shape shape(piece.sizes().begin(), piece.sizes().end()), origin(shape.size(), 0);
    messages.push_back({sender, receiver, input, 0, {origin, origin, shape}});
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t rank = call.ranks[i], own = position(call, i);
    const auto& members = call.group->members[call.group->group_of[rank]];
    outputs.push_back({at::empty(inputs[i][own].sizes(), inputs[i][own].options().device(device(rank)))});
    for (int64_t p = 0; p < call.group->size; ++p) {
      add(rank, members[p], p, inputs[i][p]);
      if (slots[members[p]] < 0) add(members[p], rank, own, inputs[i][own]);  // as large as the own addend
    }
  }
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.sender, a.receiver) < std::tie(b.sender, b.receiver);
  });
  reduce_scatter(call, messages, inputs, outputs, op);
  return as_tensors(std::move(outputs));
}

RankPieces Communicator::all_to_all(const CommCall& call, const RankPieces& inputs) {
  constexpr auto c = Collective::kAllToAll;
  check_ranks(c, call, inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) check_pieces(c, call, inputs, i);
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i][0]; });
  return exchange_whole(call, c, inputs, [&](int64_t position, std::vector<Source>& sources) {
    for (int64_t p = 0; p < call.group->size; ++p) sources.push_back({p, position, p});
  });
}

RankTensors Communicator::broadcast(const CommCall& call, const RankTensors& inputs, int64_t source) {
  constexpr auto c = Collective::kBroadcast;
  check_source(c, call, source, inputs.size());
  return as_tensors(exchange_whole(call, c, as_pieces(inputs), [&](int64_t, std::vector<Source>& sources) {
    sources.push_back({source, 0, 0});
  }));
}

RankTensors Communicator::scatter(const CommCall& call, const RankPieces& inputs, int64_t source) {
  constexpr auto c = Collective::kScatter;
  check_source(c, call, source, inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (position(call, i) == source) check_pieces(c, call, inputs, i);
  }
  return as_tensors(exchange_whole(call, c, inputs, [&](int64_t position, std::vector<Source>& sources) {
    sources.push_back({source, position, position});
  }));
}

RankPieces Communicator::gather(const CommCall& call, const RankTensors& inputs, int64_t target) {
  constexpr auto c = Collective::kGather;
  check_ranks(c, call, inputs.size());
  check_position(c, call, "target", target);
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i]; });
  return exchange_whole(call, c, as_pieces(inputs), [&](int64_t position, std::vector<Source>& sources) {
    for (int64_t p = 0; position == target && p < call.group->size; ++p) sources.push_back({p, 0, 0});
  });
}

RankTensors Communicator::permute(const CommCall& call, const RankTensors& inputs, absl::Span<const int64_t> sources) {
  constexpr auto c = Collective::kPermute;
  check_ranks(c, call, inputs.size());
  TORCH_CHECK(static_cast<int64_t>(sources.size()) == call.group->size, "permute: sources has ", sources.size(),
              " entries; group ", call.group->name, " needs one per position, ", call.group->size);
  for (int64_t source : sources) check_position(c, call, "a source", source);
  check_agreement(c, call, /*shapes=*/false, [&](size_t i) -> const at::Tensor& { return inputs[i]; });
  return as_tensors(exchange_whole(call, c, as_pieces(inputs), [&](int64_t position, std::vector<Source>& from) {
    from.push_back({sources[position], 0, 0});
  }));
}

}  // namespace dtensor::internal
