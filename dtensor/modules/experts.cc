#include "dtensor/experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "comm/comm_call.h"
#include "comm/communicator.h"
#include "dtensor/from_local.h"
#include "dtensor/gradients/gradient_layout.h"
#include "dtensor/redistribution/exchange_rows.h"
#include "dtensor/redistribution/internal/redistribute_arguments.h"
#include "dtensor/redistribution/redistribute_autograd.h"
#include "dtensor/redistribution/stand_in.h"
#include "dtensor/scopes.h"
#include "dtensor/tensor/representation.h"
#include "mesh/world.h"
#include "placement/geometry.h"

namespace dtensor {
namespace internal {

// How the tokens went.
struct ExpertRoute {
  SpecPtr tokens;
  int64_t choices = 0;  // k of a token
  RowExchange exchange;
  std::vector<std::vector<int64_t>> part_sizes;  // of each rank's part of the tokens
  // Of each rank: layout_order[j]: where row j of the layout, [tokens * k], stands among the rows sent, which are
  // sorted by expert.
  std::vector<at::Tensor> layout_order;
  // Of each rank: sender_order[j]: where the j-th row that arrived, by sender, stands among those sorted by expert.
  std::vector<at::Tensor> sender_order;
};

namespace {

constexpr const char* kDispatch = "moe_dispatch";
constexpr const char* kCombine = "moe_combine";

// Where each index of a permutation stands in it.
at::Tensor inverse_of(const at::Tensor& permutation) { return std::get<1>(at::sort(permutation)); }

at::Tensor as_index(const std::vector<int64_t>& values, at::ScalarType dtype, const at::Device& device) {
  at::Tensor t = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
  std::copy(values.begin(), values.end(), t.mutable_data_ptr<int64_t>());
  return t.to(device, dtype);
}

void check_layout(const Spec& spec, int64_t dim) {
  TORCH_CHECK_VALUE(spec.ndim() >= 2, "[moe_dispatch] tokens: ", spec.to_string(), " has ", spec.ndim(),
                    " dims: [..., width] with at least 2 is expected");
  for (int64_t m = 0; m < spec.mesh().ndim(); ++m) {
    const Placement& p = spec.placements()[m];
    const bool cuts_tokens = p.is_sharded() && p.dim() < spec.ndim() - 1;
    const bool fits = cuts_tokens || (m != dim && p.is_replicate()) || (p.is_replicate() && spec.mesh().size(m) == 1);
    TORCH_CHECK_VALUE(fits, "[moe_dispatch] tokens: ", spec.to_string(), " is ", to_string(p), " over mesh dim '",
                      spec.mesh().names()[m],
                      "': each rank needs whole tokens of its own there, so redistribute() to Shard(0)",
                      m == dim ? "" : " or Replicate()", " over it");
  }
}

// `t`: [..., k], a value per token and choice. k < 0: any.
void check_beside_tokens(const char* function, const char* name, const at::Tensor& t, const Spec& tokens, int64_t k) {
  const Spec& spec = *checked_layout(t, function).spec;
  TORCH_CHECK_VALUE(spec.mesh() == tokens.mesh(), "[", function, "] ", name, ": ", spec.to_string(),
                    " is on another mesh than the tokens, ", tokens.to_string());
  const bool fits = spec.ndim() == tokens.ndim() && spec.sizes().back() >= 1 && (k < 0 || spec.sizes().back() == k) &&
                    std::equal(spec.sizes().begin(), spec.sizes().end() - 1, tokens.sizes().begin());
  TORCH_CHECK_VALUE(fits, "[", function, "] ", name, ": ", spec.to_string(),
                    " must have the sizes of the tokens but for the last, the choices of a token",
                    k < 0 ? std::string() : c10::str(", of which there are ", k), "; the tokens are ",
                    tokens.to_string());
}

// counts[i][s][e]: rows that position s of the group of the i-th rank of this process sends to expert e.
using ExpertCounts = std::vector<std::vector<std::vector<int64_t>>>;

// One all_gather. `ids`: of each rank; those that are no expert are counted last. In a world without data: none.
ExpertCounts gather_counts(const std::vector<at::Tensor>& ids, int64_t num_experts, const DeviceMesh& mesh,
                           int64_t dim) {
  LocalGuard guard;
  RankTensors own;
  const bool has_data = mesh.world().has_data();
  for (const at::Tensor& t : ids) {
    if (has_data) own.push_back(at::bincount(t, /*weights=*/{}, num_experts + 1));
  }
  CommCall call;
  call.group = &mesh.get_group(dim);
  call.ranks = mesh.local_ranks();
  call.event.cause = explicit_cause(kDispatch);
  call.event.cause.argument = "expert_ids";
  call.event.dtype = at::kLong;
  call.event.bytes = (call.group->size - 1) * (num_experts + 1) * 8;
  RankPieces all;
  if (call.group->size > 1) {
    all = mesh.world().communicator().all_gather(call, own);
  } else {
    for (const at::Tensor& t : own) all.push_back({t});
  }
  ExpertCounts counts;
  for (size_t i = 0; i < all.size(); ++i) {
    auto& of_group = counts.emplace_back();
    const auto& members = call.group->members[call.group->group_of[call.ranks[i]]];
    const at::Tensor here = at::cat(all[i]).cpu();
    for (size_t s = 0; s < members.size(); ++s) {
      const auto* values = here.const_data_ptr<int64_t>() + static_cast<int64_t>(s) * (num_experts + 1);
      of_group.emplace_back(values, values + num_experts);
      TORCH_CHECK_INDEX(values[num_experts] == 0, "[moe_dispatch] expert_ids: rank ", members[s], " has ",
                        values[num_experts], " that are negative or not below the number of experts, ", num_experts);
    }
  }
  return counts;
}

// Fills in how many rows each rank sends to each other. Returns the same for each rank's experts: received[i][e][s],
// from position s.
ExpertCounts set_exchange(RowExchange& exchange, const ExpertCounts& counts, int64_t num_experts) {
  const RankGroups& group = exchange.mesh.get_group(exchange.mesh_dim);
  ExpertCounts received;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t own = group.position_of[exchange.mesh.local_ranks()[i]];
    exchange.sent.emplace_back(group.size, 0);
    exchange.received.emplace_back(group.size, 0);
    std::vector<int64_t> all_sent(group.size, 0);  // of each position, to others
    for (int64_t r = 0; r < group.size; ++r) {
      const IndexRange experts = chunk(num_experts, group.size, r);
      int64_t gets = 0;
      for (int64_t s = 0; s < group.size; ++s) {
        const auto begin = counts[i][s].begin() + experts.begin;
        const int64_t rows = std::accumulate(begin, begin + experts.size, int64_t{0});
        if (s == own) exchange.sent[i][r] = rows;
        if (r == own) exchange.received[i][s] = rows;
        if (s != r) gets += rows, all_sent[s] += rows;
      }
      exchange.most_received = std::max(exchange.most_received, gets);
    }
    exchange.most_sent = std::max(exchange.most_sent, *std::max_element(all_sent.begin(), all_sent.end()));
    auto& of_rank = received.emplace_back();
    const IndexRange experts = chunk(num_experts, group.size, own);
    for (int64_t e = 0; e < experts.size; ++e) {
      auto& of_expert = of_rank.emplace_back();
      for (int64_t s = 0; s < group.size; ++s) of_expert.push_back(counts[i][s][experts.begin + e]);
    }
  }
  return received;
}

// Assumes even routing: of the rows of each rank, the rank with most experts receives its experts' share, rounded up.
// `rows`: that a rank sends. Returns what set_exchange() does.
ExpertCounts set_even_exchange(RowExchange& exchange, int64_t rows, int64_t num_experts) {
  const int64_t size = exchange.mesh.get_group(exchange.mesh_dim).size, own = chunk(num_experts, size, 0).size;
  const int64_t arrive = (rows * own + num_experts - 1) / num_experts;  // from each rank
  std::vector<int64_t>& sent = exchange.sent.emplace_back();
  for (int64_t r = 0; r < size; ++r) {
    const IndexRange experts = chunk(num_experts, size, r);
    sent.push_back(rows * (experts.begin + experts.size) / num_experts - rows * experts.begin / num_experts);
  }
  exchange.received.emplace_back(size, arrive);
  exchange.most_received = (size - 1) * arrive;
  exchange.most_sent = rows - *std::min_element(sent.begin(), sent.end());
  ExpertCounts received(1);
  for (int64_t e = 0; e < own; ++e) {
    auto& of_expert = received[0].emplace_back();
    for (int64_t s = 0; s < size; ++s) {  // what one sender rounds down, the next rounds up
      const int64_t shift = s % own;
      of_expert.push_back((arrive * (e + 1) + shift) / own - (arrive * e + shift) / own);
    }
  }
  return received;
}

// Where the rows of each expert lie among those that arrived, sorted by sender and then by expert.
std::vector<int64_t> expert_order(const std::vector<std::vector<int64_t>>& received, size_t senders) {
  std::vector<int64_t> begins(senders, 0);  // of the next rows of each sender
  for (size_t s = 1; s < senders; ++s) {
    begins[s] = begins[s - 1];
    for (const auto& of_expert : received) begins[s] += of_expert[s - 1];
  }
  std::vector<int64_t> order;
  for (const auto& of_expert : received) {
    for (size_t s = 0; s < senders; ++s) {
      for (int64_t n = 0; n < of_expert[s]; ++n) order.push_back(begins[s]++);
    }
  }
  return order;
}

void check_weight(const at::Tensor& weight, const Spec& tokens, int64_t num_experts) {
  const Spec& spec = *checked_layout(weight, kDispatch).spec;
  TORCH_CHECK_VALUE(spec.mesh() == tokens.mesh(), "[moe_dispatch] weights: ", spec.to_string(),
                    " is on another mesh than the tokens, ", tokens.to_string());
  TORCH_CHECK_VALUE(spec.ndim() >= 1 && spec.sizes()[0] == num_experts && num_experts > 0,
                    "[moe_dispatch] weights: ", spec.to_string(),
                    " must have the number of experts as its first size, above 0 and as the first weight, ",
                    num_experts);
}

// The parts of an expert weight, of each rank of this process. Their gradients are added up over ranks with other
// tokens.
std::vector<at::Tensor> local_experts(const at::Tensor& weight, const Spec& tokens, int64_t dim) {
  keep_gradient_layout(weight);
  Placements whole, gradient;
  for (int64_t m = 0; m < tokens.mesh().ndim(); ++m) {
    whole.push_back(m == dim ? Shard(0) : Replicate());
    gradient.push_back(m == dim ? Shard(0) : tokens.placements()[m].is_sharded() ? Partial() : Replicate());
  }
  const at::Tensor moved = redistribute_as(weight, whole, explicit_cause(kDispatch));
  fetch_parts(moved);  // a slice may have none yet
  return parts_of(moved, gradient);
}

// The rows of one rank, sorted by expert. `received`: from each sender, of each of its experts.
void add_arrived(ExpertTokens& result, ExpertRoute& route, const at::Tensor& arrived,
                 const std::vector<std::vector<int64_t>>& received) {
  const DeviceMesh& mesh = route.exchange.mesh;
  const auto senders = static_cast<size_t>(mesh.size(route.exchange.mesh_dim));
  std::vector<int64_t>& counts = result.counts.emplace_back();
  for (const auto& of_expert : received)
    counts.push_back(std::accumulate(of_expert.begin(), of_expert.end(), int64_t{0}));
  std::vector<int64_t> ends(counts.size());
  std::partial_sum(counts.begin(), counts.end(), ends.begin());
  const bool has_data = mesh.world().has_data();
  const at::Tensor order = has_data ? as_index(expert_order(received, senders), at::kLong, arrived.device())
                                    : make_stand_in(mesh, {arrived.size(0)}, at::kLong);
  result.offsets.push_back(has_data ? as_index(ends, at::kInt, arrived.device())
                                    : make_stand_in(mesh, {static_cast<int64_t>(ends.size())}, at::kInt));
  route.sender_order.push_back(inverse_of(order));
  result.rows.push_back(arrived.index_select(0, order));
}

}  // namespace
}  // namespace internal

using namespace internal;

ExpertTokens moe_dispatch(const at::Tensor& tokens, const at::Tensor& expert_ids,
                          const std::vector<at::Tensor>& weights, const std::string& mesh_dim) {
  const SpecPtr spec = checked_layout(tokens, kDispatch).spec;
  const DeviceMesh& mesh = spec->mesh();
  const int64_t dim = mesh.dim(mesh_dim);
  check_layout(*spec, dim);
  TORCH_CHECK_TYPE(at::isIntegralType(expert_ids.scalar_type(), /*includeBool=*/false),
                   "[moe_dispatch] expert_ids are ", expert_ids.scalar_type(), ": integers are expected");
  TORCH_CHECK_NOT_IMPLEMENTED(!mesh.world().has_data() || !mesh.local_ranks().empty(), "[moe_dispatch] ",
                              spec->to_string(),
                              " has no data in this process, which has no rank of the mesh: the "
                              "values of expert_ids decide where tokens go");
  TORCH_CHECK_VALUE(!weights.empty(),
                    "[moe_dispatch] weights is empty: at least one, [number of experts, ...], is expected");
  const int64_t num_experts = weights[0].dim() > 0 ? weights[0].size(0) : 0;
  for (const at::Tensor& weight : weights) check_weight(weight, *spec, num_experts);
  check_beside_tokens(kDispatch, "expert_ids", expert_ids, *spec, /*k=*/-1);

  ExpertTokens result;
  for (const at::Tensor& weight : weights) result.weights.push_back(local_experts(weight, *spec, dim));
  const at::Tensor own_ids = redistribute_as(expert_ids, spec->placements(), explicit_cause(kDispatch));
  for (const at::Tensor& t : {own_ids, tokens}) fetch_parts(t);  // a slice may have none yet
  const PlainFactories plain;
  auto route = std::make_shared<ExpertRoute>();
  route->tokens = spec;
  route->choices = expert_ids.size(-1);
  route->exchange.mesh = mesh;
  route->exchange.mesh_dim = dim;
  route->exchange.cause = explicit_cause(kDispatch);
  std::vector<at::Tensor> ids;
  for (const at::Tensor& t : parts_of(own_ids, spec->placements())) {
    const at::Tensor flat = t.detach().reshape({-1}).to(at::kLong);
    ids.push_back(at::where(flat.lt(0).logical_or(flat.ge(num_experts)), num_experts, flat));
  }
  const ExpertCounts counts = gather_counts(ids, num_experts, mesh, dim);
  const ExpertCounts received = mesh.world().has_data()
                                    ? set_exchange(route->exchange, counts, num_experts)
                                    : set_even_exchange(route->exchange, ids[0].size(0), num_experts);

  const std::vector<at::Tensor> locals = parts_of(tokens, spec->placements());
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < locals.size(); ++i) {
    const at::Tensor order = std::get<1>(at::sort(ids[i], /*stable=*/true, /*dim=*/0, /*descending=*/false));
    route->layout_order.push_back(inverse_of(order));
    const at::Tensor token = order.floor_divide(route->choices);
    route->part_sizes.push_back(locals[i].sizes().vec());
    rows.push_back(locals[i].flatten(0, -2).index_select(0, token));
  }
  const std::vector<at::Tensor> arrived = exchange_rows(rows, route->exchange);
  for (size_t i = 0; i < arrived.size(); ++i) add_arrived(result, *route, arrived[i], received[i]);
  result.route = std::move(route);
  return result;
}

at::Tensor moe_combine(const ExpertTokens& sent, const std::vector<at::Tensor>& results, const at::Tensor& shares) {
  TORCH_CHECK_VALUE(sent.route != nullptr, "[moe_combine] sent is empty: pass what moe_dispatch() returned");
  const ExpertRoute& route = *sent.route;
  const Spec& spec = *route.tokens;
  if (shares.defined()) check_beside_tokens(kCombine, "shares", shares, spec, route.choices);
  const RowExchange back = sent_back(route.exchange, explicit_cause(kCombine));
  const PlainFactories plain;
  std::vector<at::Tensor> rows;
  for (size_t i = 0; i < results.size() && i < route.sender_order.size(); ++i) {
    TORCH_CHECK_VALUE(results[i].dim() == 2 && results[i].size(0) == sent.rows[i].size(0),
                      "[moe_combine] the result of rank ", rank_of_part(spec.mesh(), i), " has the shape ",
                      results[i].sizes(), ": one row for each of the ", sent.rows[i].size(0),
                      " that it got is expected, [", sent.rows[i].size(0), ", width]");
    rows.push_back(results[i].index_select(0, route.sender_order[i]));
  }
  rows.insert(rows.end(), results.begin() + static_cast<std::ptrdiff_t>(rows.size()), results.end());
  // What a rank did not use.
  std::vector<at::Tensor> reached = sent.rows;
  for (const auto& of_weight : sent.weights) reached.insert(reached.end(), of_weight.begin(), of_weight.end());
  const std::vector<at::Tensor> returned = exchange_rows(rows, back, reached);
  std::vector<at::Tensor> of_choices;
  if (shares.defined()) {
    const at::Tensor moved = redistribute_as(shares, spec.placements(), explicit_cause(kCombine));
    fetch_parts(moved);
    of_choices = parts_of(moved, spec.placements());
  }
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < returned.size(); ++i) {
    at::Tensor of_tokens = returned[i].index_select(0, route.layout_order[i]);
    of_tokens = of_tokens.view({of_tokens.size(0) / route.choices, route.choices, of_tokens.size(1)});
    if (shares.defined()) of_tokens = of_tokens.mul(of_choices[i].flatten(0, -2).unsqueeze(-1));
    std::vector<int64_t> sizes = route.part_sizes[i];
    sizes.back() = returned[0].size(1);
    locals.push_back(of_tokens.sum(1).reshape(sizes));
  }
  std::vector<int64_t> whole(spec.sizes().begin(), spec.sizes().end());
  whole.back() = returned[0].size(1);
  return from_parts_of(locals, spec.mesh(), spec.placements(), whole);
}

}  // namespace dtensor
