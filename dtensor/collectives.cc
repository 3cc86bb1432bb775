#include "dtensor/collectives.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "comm/communicator.h"
#include "dtensor/redistribution/internal/plain_call.h"
#include "dtensor/redistribution/internal/plain_collective.h"
#include "dtensor/redistribution/internal/plain_exchange.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/tensor/representation.h"

namespace dtensor {
using namespace internal;

namespace {

using Sizes = std::vector<int64_t>;

std::optional<Extent> extent_if(bool moves, int64_t offset, int64_t length) {
  return moves ? std::optional<Extent>({offset, length}) : std::nullopt;
}

void check_op(const PlainCall& call, const RankTensors& tensors, ReduceOp op) {
  TORCH_CHECK_VALUE(op != ReduceOp::kNorm2, "[", call.function(), "] no backend knows norm2: sum the squares");
  const bool records = at::GradMode::is_enabled() && !is_linear(op) &&
                       std::any_of(tensors.begin(), tensors.end(), [](const auto& t) { return t.requires_grad(); });
  TORCH_CHECK_VALUE(!records, "[", call.function(), "] ", to_string(op),
                    " has no gradient here: detach() the tensors, or use sum or avg");
}

RankTensors reduced(const PlainCall& call, const RankTensors& tensors, ReduceOp op) {
  const auto forward = [=](const RankTensors& inputs) {
    const LocalGuard guard;
    int64_t bytes = 0;
    for (const at::Tensor& t : inputs) bytes = std::max(bytes, static_cast<int64_t>(t.nbytes()));
    const CommCall comm = comm_call(call, inputs, 2 * bytes * (call.size() - 1) / call.size());
    return call.mesh.world().communicator().all_reduce(comm, inputs, op);
  };
  return differentiable(call, tensors, forward, [=](const RankTensors& grads) { return reduced(call, grads, op); });
}

RankTensors scattered_sums(const PlainCall& call, const RankTensors& tensors, const Concatenation& whole, ReduceOp op);

RankTensors gathered(const PlainCall& call, const RankTensors& tensors, const Concatenation& whole) {
  const PlainExchange exchange{whole.dim,
                               [=](size_t i, int64_t) {
                                 return Extent{0, whole.sizes[i][call.position(i)]};
                               },
                               [=](size_t i, int64_t from) {
                                 return Extent{whole.start(i, from), whole.sizes[i][from]};
                               },
                               [=](size_t i) { return whole.whole(i); },
                               [=](size_t i, int64_t unit) { return unit * whole.most_lacking(i); }};
  const auto forward = [=](const RankTensors& inputs) { return run(call, exchange, Collective::kAllGather, inputs); };
  return differentiable(call, tensors, forward,
                        [=](const RankTensors& grads) { return scattered_sums(call, grads, whole, ReduceOp::kSum); });
}

RankTensors scattered_sums(const PlainCall& call, const RankTensors& tensors, const Concatenation& whole, ReduceOp op) {
  const auto own = [=](size_t i) { return whole.sizes[i][call.position(i)]; };
  const PlainExchange exchange{
      whole.dim,
      [=](size_t i, int64_t to) {
        return Extent{whole.start(i, to), whole.sizes[i][to]};
      },
      [=](size_t i, int64_t) {
        return Extent{0, own(i)};
      },
      own, [=](size_t i, int64_t unit) { return unit * whole.whole(i) * (call.size() - 1) / call.size(); }};
  const auto forward = [=](const RankTensors& inputs) {
    return run(call, exchange, Collective::kReduceScatter, inputs, op);
  };
  return differentiable(call, tensors, forward, [=](RankTensors grads) {
    if (op == ReduceOp::kAvg) {
      for (at::Tensor& g : grads) g = g.div(static_cast<double>(call.size()));
    }
    return gathered(call, grads, whole);
  });
}

// Splits: one list per owned rank; `even`: all sizes are equal, on all ranks.
RankTensors exchanged(const PlainCall& call, const RankTensors& tensors, const std::vector<Sizes>& sent,
                      const std::vector<Sizes>& received, bool even) {
  // No rank knows the splits of the others.
  const PlainExchange exchange = exchange_of_splits(
      sent, received, [=](size_t i, int64_t unit) { return even ? unit * (call.size() - 1) * sent[i][0] : 0; });
  const auto forward = [=](const RankTensors& inputs) { return run(call, exchange, Collective::kAllToAll, inputs); };
  return differentiable(call, tensors, forward,
                        [=](const RankTensors& grads) { return exchanged(call, grads, received, sent, even); });
}

// Whether a position gets what another one has.
bool moves_between_ranks(const Sizes& sources) {
  for (size_t p = 0; p < sources.size(); ++p) {
    if (sources[p] >= 0 && sources[p] != static_cast<int64_t>(p)) return true;
  }
  return false;
}

// `sources`, `targets`: by position; -1: none.
RankTensors permuted(const PlainCall& call, const RankTensors& tensors, const Sizes& sources, const Sizes& targets) {
  const PlainExchange exchange{
      -1, [=](size_t i, int64_t to) { return extent_if(targets[call.position(i)] == to, 0, 1); },
      [=](size_t i, int64_t from) { return extent_if(sources[call.position(i)] == from, 0, 1); },
      [](size_t) { return 1; }, [=](size_t, int64_t unit) { return moves_between_ranks(sources) ? unit : 0; }};
  const auto forward = [=](const RankTensors& inputs) {
    RankTensors results = run(call, exchange, Collective::kPermute, inputs);
    for (size_t i = 0; i < results.size(); ++i) {
      if (sources[call.position(i)] < 0) results[i].zero_();
    }
    return results;
  };
  return differentiable(call, tensors, forward,
                        [=](const RankTensors& grads) { return permuted(call, grads, targets, sources); });
}

}  // namespace

std::vector<at::Tensor> all_reduce(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                   std::string_view mesh_dim, ReduceOp op) {
  const PlainCall call = plain_call("all_reduce", mesh, mesh_dim);
  check_tensors(call, tensors);
  check_op(call, tensors, op);
  return reduced(call, tensors, op);
}

std::vector<at::Tensor> all_gather_tensor(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                          std::string_view mesh_dim, int64_t gather_dim, c10::IntArrayRef sizes) {
  const PlainCall call = plain_call("all_gather_tensor", mesh, mesh_dim);
  const Concatenation whole = checked_parts(call, tensors, gather_dim, sizes);
  return gathered(call, tensors, whole);
}

std::vector<at::Tensor> reduce_scatter_tensor(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                              std::string_view mesh_dim, int64_t scatter_dim, ReduceOp op,
                                              c10::IntArrayRef sizes) {
  const PlainCall call = plain_call("reduce_scatter_tensor", mesh, mesh_dim);
  const Concatenation whole = checked_whole(call, tensors, scatter_dim, sizes);
  check_op(call, tensors, op);
  return scattered_sums(call, tensors, whole, op);
}

std::vector<at::Tensor> all_to_all_single(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                          std::string_view mesh_dim, const AllToAllSplits& splits) {
  const PlainCall call = plain_call("all_to_all_single", mesh, mesh_dim);
  const bool given = !splits.input_split_sizes.empty();
  TORCH_CHECK_VALUE(given == !splits.output_split_sizes.empty(),
                    "[all_to_all_single] give both input_split_sizes and output_split_sizes, or neither");
  check_tensors(call, tensors, given ? 0 : -1);
  return exchanged(call, tensors,
                   checked_splits(call, "input_split_sizes", splits.input_split_sizes, tensors, /*of_input=*/true),
                   checked_splits(call, "output_split_sizes", splits.output_split_sizes, tensors, /*of_input=*/false),
                   /*even=*/!given);
}

std::vector<at::Tensor> permute_tensor(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                       std::string_view mesh_dim, c10::IntArrayRef src_dst) {
  const PlainCall call = plain_call("permute_tensor", mesh, mesh_dim);
  check_tensors(call, tensors);
  TORCH_CHECK_VALUE(static_cast<int64_t>(src_dst.size()) == call.size(), "[permute_tensor] src_dst is ", src_dst,
                    "; give one per position along '", call.mesh_dim, "' of ", mesh.to_string(), ", ", call.size());
  Sizes sources(call.size(), -1);
  for (int64_t p = 0; p < call.size(); ++p) {
    if (src_dst[p] == -1) continue;
    check_position(call, "an entry of src_dst", src_dst[p]);
    TORCH_CHECK_VALUE(sources[src_dst[p]] < 0, "[permute_tensor] positions ", sources[src_dst[p]], " and ", p,
                      " send to position ", src_dst[p], ": src_dst is ", src_dst);
    sources[src_dst[p]] = p;
  }
  return permuted(call, tensors, sources, src_dst.vec());
}

std::vector<at::Tensor> broadcast(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                  std::string_view mesh_dim, int64_t src) {
  const PlainCall call = plain_call("broadcast", mesh, mesh_dim);
  check_tensors(call, tensors);
  check_position(call, "src", src);
  return run(call,
             {-1, [&](size_t i, int64_t) { return extent_if(call.position(i) == src, 0, 1); },
              [&](size_t, int64_t from) { return extent_if(from == src, 0, 1); }, [](size_t) { return 1; },
              [&](size_t, int64_t unit) { return call.size() > 1 ? unit : 0; }},
             Collective::kBroadcast, tensors);
}

std::vector<at::Tensor> scatter(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                std::string_view mesh_dim, int64_t src, int64_t scatter_dim, c10::IntArrayRef sizes) {
  const PlainCall call = plain_call("scatter", mesh, mesh_dim);
  const Concatenation whole = checked_whole(call, tensors, scatter_dim, sizes);
  check_position(call, "src", src);
  const auto own = [&](size_t i) { return whole.sizes[i][call.position(i)]; };
  return run(
      call,
      {whole.dim,
       [&](size_t i, int64_t to) { return extent_if(call.position(i) == src, whole.start(i, to), whole.sizes[i][to]); },
       [&](size_t i, int64_t from) { return extent_if(from == src, 0, own(i)); }, own,
       [&](size_t i, int64_t unit) {
         Sizes others = whole.sizes[i];
         others[src] = 0;
         return unit * *std::max_element(others.begin(), others.end());
       }},
      Collective::kScatter, tensors);
}

std::vector<at::Tensor> gather(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                               std::string_view mesh_dim, int64_t dst, int64_t gather_dim, c10::IntArrayRef sizes) {
  const PlainCall call = plain_call("gather", mesh, mesh_dim);
  const Concatenation whole = checked_parts(call, tensors, gather_dim, sizes);
  check_position(call, "dst", dst);
  const auto is_target = [&](size_t i) { return call.position(i) == dst; };
  return run(
      call,
      {whole.dim, [&](size_t i, int64_t to) { return extent_if(to == dst, 0, whole.sizes[i][call.position(i)]); },
       [&](size_t i, int64_t from) { return extent_if(is_target(i), whole.start(i, from), whole.sizes[i][from]); },
       [&](size_t i) { return is_target(i) ? std::optional<int64_t>(whole.whole(i)) : std::nullopt; },
       [&](size_t i, int64_t unit) { return unit * (whole.whole(i) - whole.sizes[i][dst]); }},
      Collective::kGather, tensors);
}

std::vector<at::Tensor> send_recv(const std::vector<at::Tensor>& tensors, const DeviceMesh& mesh,
                                  std::string_view mesh_dim, int64_t src, int64_t dst) {
  const PlainCall call = plain_call("send_recv", mesh, mesh_dim);
  check_tensors(call, tensors);
  check_position(call, "src", src);
  check_position(call, "dst", dst);
  TORCH_CHECK_VALUE(src != dst, "[send_recv] src and dst are both ", src, "; use the tensor itself");
  // The two ranks of each group, which are a group of their own: no other rank is waited for.
  Sizes ranks;
  for (const auto& members : call.group().members) {
    ranks.push_back(members[src]);
    ranks.push_back(members[dst]);
  }
  const DeviceMesh pairs(mesh.world(), {static_cast<int64_t>(ranks.size()) / 2, 2},
                         {call.mesh_dim + " pairs", call.mesh_dim}, ranks);
  std::vector<at::Tensor> results(tensors.size());
  if (!tensors.empty() && pairs.local_ranks().empty()) return results;
  const auto& owned = mesh.local_ranks();
  const auto index = [&](int64_t rank) { return std::find(owned.begin(), owned.end(), rank) - owned.begin(); };
  RankTensors of_pairs;
  for (const int64_t rank : pairs.local_ranks()) of_pairs.push_back(tensors[index(rank)]);
  const PlainCall pair_call{pairs, call.mesh_dim, call.cause};
  const auto is_target = [&](size_t i) { return pair_call.position(i) == 1; };
  const RankTensors arrived = run(pair_call,
                                  {-1, [&](size_t i, int64_t to) { return extent_if(!is_target(i) && to == 1, 0, 1); },
                                   [&](size_t i, int64_t from) { return extent_if(is_target(i) && from == 0, 0, 1); },
                                   [&](size_t i) { return is_target(i) ? std::optional<int64_t>(1) : std::nullopt; },
                                   [](size_t, int64_t unit) { return unit; }},
                                  Collective::kPermute, of_pairs);
  for (size_t i = 0; i < arrived.size(); ++i) results[index(pairs.local_ranks()[i])] = arrived[i];
  return results;
}

void barrier(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.defined(), "[barrier] no mesh");
  Sizes dims(mesh.ndim());
  std::iota(dims.begin(), dims.end(), 0);
  CommCall call;
  call.group = &mesh.group(dims);
  call.ranks = mesh.local_ranks();
  call.event.cause = explicit_cause("barrier");
  mesh.world().communicator().barrier(call);
}

}  // namespace dtensor
