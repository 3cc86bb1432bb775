#include "propagation/strategy_pricer.h"

#include <algorithm>

#include "placement/parse_placements.h"
#include "plan/cost_policy.h"
#include "plan/largest_part.h"
#include "plan/plan_many.h"
#include "plan/redistribute_planner.h"
#include "plan/search/mesh_steps.h"

namespace dtensor::internal {
namespace {

int64_t bytes_of(const Shape& sizes, c10::ScalarType dtype) {
  int64_t bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (const int64_t n : sizes) bytes *= n;
  return bytes;
}

bool shards(const Placements& placements) {
  return std::any_of(placements.begin(), placements.end(), [](const Placement& p) { return p.is_sharded(); });
}

}  // namespace

bool returns_view(const c10::FunctionSchema& schema) {
  const auto shares = [](const c10::Argument& result) {
    const auto* alias = result.alias_info();
    return alias != nullptr && !alias->isWrite();
  };
  return std::any_of(schema.returns().begin(), schema.returns().end(), shares);
}

SpecPtr moved_of(const OpCall& call, size_t input, const Placements& to) {
  const SpecPtr& spec = call.inputs[input];
  const auto is_copies = [&](int64_t d) {
    const auto cuts = [&](const Placement& p) { return p.is_sharded_on(d) || p.is_mask_partial(); };
    return spec->sizes()[d] > 1 && spec->strides()[d] == 0 &&
           std::none_of(spec->placements().begin(), spec->placements().end(), cuts) &&
           std::none_of(to.begin(), to.end(), cuts);
  };
  bool has_copies = false;
  for (int64_t d = 0; d < spec->ndim(); ++d) has_copies = has_copies || is_copies(d);
  if (!has_copies || call.written()[input] || returns_view(call.schema())) return spec;
  TensorMeta meta = spec->meta();
  for (int64_t d = 0; d < spec->ndim(); ++d) {
    if (is_copies(d)) meta.sizes[d] = 1;
  }
  return Spec::get(spec->mesh(), spec->placements(), meta);
}

std::vector<Pricer::Group> Pricer::all_inputs(const Problem& problem) {
  std::vector<Pricer::Group> groups;
  groups.reserve(problem.functional.inputs.size());
  for (size_t i = 0; i < problem.functional.inputs.size(); ++i) {
    if (problem.call.inputs[i]) groups.push_back({i, 1});
  }
  return groups;
}

Pricer::Pricer(const Problem& problem) : Pricer(problem, all_inputs(problem)) {}

std::optional<Score> Pricer::price(const Strategy& s, Picoseconds limit, bool quick) {
  quick = quick && !problem_.limits.any();  // an existing route may need too much memory
  ++priced_;
  for (size_t o = 0; o < s.outputs.size(); ++o) {
    if (o < problem_.metas.tensors.size() && !problem_.metas.tensors[o]) continue;
    if (!check_placements(s.outputs[o], std::numeric_limits<int32_t>::max()).ok()) return std::nullopt;
  }
  // First with lower bounds for redistributions that are not planned yet.
  Score score{new_sharding_cost(s), 0};
  changes_.clear();
  for (const Group& g : groups_) {
    const Spec& spec = *problem_.call.inputs[g.input];
    const Placements& to = s.inputs[g.input];
    if (spec.placements() == to) continue;
    Price& price = prices_.try_emplace({&spec, move_count(g), to}, Price{.move_count = move_count(g)}).first->second;
    if (price.cost < 0) bound(g.input, to, price);
    if (price.cost == kNever) return std::nullopt;
    if (quick && !price.planned && price.quick < 0) {
      const SpecPtr moved = moved_of(problem_.call, g.input, to);
      price.quick = picoseconds(plain_seconds(moved->mesh(), moved->meta(), moved->placements(), to, *problem_.cost));
    }
    const Picoseconds one = quick && !price.planned ? price.quick : price.cost;
    score.changed += g.count;
    if (price.strategy == priced_) {  // another one of the same group
      score.cost -= price.of_all(one);
      price.count += g.count;
    } else {
      price.strategy = priced_;
      price.count = g.count;
      if (!quick) changes_.push_back(g);
    }
    score.cost += price.of_all(one);
  }
  // The following terms are not negative: skips them if redistributing the inputs is too expensive already.
  if (score.cost > limit) return std::nullopt;
  const Picoseconds after = way_back(s);
  if (after == kNever) return std::nullopt;
  score.cost += after;
  if (score.cost > limit) return std::nullopt;
  score.cost += work(s);
  for (const Group& g : changes_) {
    if (score.cost > limit) return std::nullopt;
    const Spec* spec = problem_.call.inputs[g.input].get();
    Price& price = prices_.find(std::make_tuple(spec, move_count(g), s.inputs[g.input]))->second;
    if (price.planned) continue;
    score.cost -= price.of_all(price.cost);
    plan(g.input, s.inputs[g.input], price);
    if (price.cost == kNever) return std::nullopt;
    score.cost += price.of_all(price.cost);
  }
  return score.cost > limit ? std::nullopt : std::optional(score);
}

// Whether the sequence is sharded within samples. Samples are never mixed: weights are gathered, as in fully sharded
// models. Sharded tokens are mixed: gathered ones are reused by other operators (keys and values, if this computes
// queries), while a parameter's gradient must return to the parameter's layout: a forward gather implies a backward
// scatter.
bool Pricer::shares_samples() const {
  if (problem_.call.context.parameters.empty()) return false;
  return std::any_of(groups_.begin(), groups_.end(), [&](const Group& g) {
    const Placements& given = problem_.call.inputs[g.input]->placements();
    return !problem_.call.context.is_parameter(g.input) &&
           std::any_of(given.begin(), given.end(), [](const Placement& p) { return p.is_strided_shard(); });
  });
}

int Pricer::move_count(const Group& g) const {
  return shares_samples_ && problem_.call.context.is_parameter(g.input) ? 2 : 1;
}

void Pricer::bound(size_t input, const Placements& to, Price& price) const {
  price.cost = kNever;
  if (!check_placements(to, problem_.call.inputs[input]->ndim()).ok()) return;
  const SpecPtr moved = moved_of(problem_.call, input, to);
  const double least = least_seconds(moved->mesh(), moved->meta(), moved->placements(), to, *problem_.cost);
  price.cost = std::max<Picoseconds>(0, picoseconds(least) - 1);
  price.latency = std::min(price.cost, picoseconds(problem_.cost->least(0)));
}

void Pricer::plan(size_t input, const Placements& to, Price& price) {
  const auto plan = cached_plan_within(moved_of(problem_.call, input, to), to, problem_.limits);
  price.cost = plan ? picoseconds(plan->seconds) : kNever;
  price.latency = plan ? picoseconds(latency_of(*plan)) : 0;
  price.planned = true;
  ++planned_;
}

int64_t Pricer::local_bytes(const TensorMeta& meta, const Placements& placements) const {
  return bytes_of(largest_part(meta.sizes, problem_.call.mesh.shape(), placements), meta.dtype);
}

int64_t Pricer::bytes_read(const Strategy& s) const {
  int64_t bytes = 0;
  for (const Group& g : groups_) {
    bytes += g.count * local_bytes(problem_.call.inputs[g.input]->meta(), s.inputs[g.input]);
  }
  return bytes;
}

// The FLOP of a rank, and the bytes read and written for them: work that all ranks do redundantly costs each of them
// all of it. Operators without matrix products cost nothing, as they take little, and strategies with equal
// communication read about as much.
Picoseconds Pricer::work(const Strategy& s) const {
  if (!problem_.flops) return 0;
  std::vector<Shape> parts(problem_.functional.inputs.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (const SpecPtr& input = problem_.functional.inputs[i])
      parts[i] = largest_part(input->sizes(), problem_.call.mesh.shape(), s.inputs[i]);
  }
  int64_t bytes = 0;
  for (const Group& g : groups_) bytes += g.count * bytes_of(parts[g.input], problem_.call.inputs[g.input]->dtype());
  for (size_t o = 0; o < s.outputs.size() && o < problem_.metas.tensors.size(); ++o) {
    if (problem_.metas.tensors[o]) bytes += local_bytes(*problem_.metas.tensors[o], s.outputs[o]);
  }
  return picoseconds(problem_.cost->work(problem_.flops(parts), dtype_of_flops(problem_.functional), bytes));
}

bool Pricer::begins_to_shard(const Strategy& s, int64_t d) const {
  const auto is_cut = [&](const Group& g) { return s.inputs[g.input][d].is_sharded(); };
  const auto came_sharded = [&](const Group& g) {
    return problem_.given(g.input, d).is_sharded() || problem_.returns_to_preferred(g.input, d, s.inputs[g.input][d]) ||
           (problem_.call.context.is_factory_input(g.input) && is_cut(g));
  };
  return std::none_of(groups_.begin(), groups_.end(), came_sharded) &&
         std::any_of(groups_.begin(), groups_.end(), is_cut);
}

// If no input was sharded along a mesh dim, the program works with whole tensors: a result that is sharded for this
// operator will be gathered in the end. An input that was Partial could have been reduced later: that is saved.
Picoseconds Pricer::new_sharding_cost(const Strategy& s) const {
  Picoseconds total = 0;
  for (int64_t d = 0; d < problem_.mesh_ndim(); ++d) {
    if (!begins_to_shard(s, d)) continue;
    Picoseconds now = 0, later = 0;
    for (const Group& g : groups_) {
      const Spec& spec = *problem_.call.inputs[g.input];
      now += g.count * reduction(spec.meta(), spec.placements(), d);
    }
    for (size_t o = 0; o < s.outputs.size() && o < problem_.metas.tensors.size(); ++o) {
      if (!problem_.metas.tensors[o] || !s.outputs[o][d].is_sharded()) continue;
      Placements whole = s.outputs[o];
      whole[d] = Partial();
      const TensorMeta& meta = *problem_.metas.tensors[o];
      later += reduction(meta, whole, d);
      total += collective(Collective::kAllGather, d, local_bytes(meta, whole));
    }
    if (defers_past_product(now, later)) total -= later;
  }
  return total;
}

// Time to bring the result to its final layout, if known: a gradient to the layout of its parameter, which may be a
// reduction of a whole table. Also the time to read the inputs: otherwise each rank could do all the work to save a
// reduction.
Picoseconds Pricer::way_back(const Strategy& s) {
  const SpecPtr& target = problem_.call.context.gradient_target;
  if (!target || target->mesh() != problem_.call.mesh) return made_partials(s) + displaced(s);
  double seconds = problem_.flops ? 0 : problem_.cost->copy(bytes_read(s));
  for (size_t o = 0; o < s.outputs.size() && o < problem_.metas.tensors.size(); ++o) {
    const auto& meta = problem_.metas.tensors[o];
    if (!meta) continue;
    // The target is the layout of one of several gradients, and of the others, too, if it shards nothing.
    const bool can_be = target->sizes() == meta->sizes || (s.outputs.size() > 1 && !shards(target->placements()));
    if (!can_be) return made_partials(s) + displaced(s);
    const SpecPtr made = Spec::get(target->mesh(), s.outputs[o], *meta);
    if (made->placements() == target->placements()) continue;
    const auto plan = cached_plan_within(made, target->placements(), problem_.limits);
    if (!plan) return kNever;
    seconds += plan->seconds;
  }
  return picoseconds(seconds);
}

// Time of a collective over the ranks along mesh dim d; `bytes`: of the whole tensor.
Picoseconds Pricer::collective(Collective kind, int64_t d, int64_t bytes) const {
  const DeviceMesh& mesh = problem_.call.mesh;
  const int64_t passes = kind == Collective::kAllReduce ? 2 : 1;
  const bool crosses = (mesh.dims_between_nodes(problem_.cost->ranks_per_node) >> d & 1) != 0;
  return picoseconds(problem_.cost->collective(kind, GroupExtent::of_links(mesh.size(d), crosses),
                                               passes * bytes * (mesh.size(d) - 1) / mesh.size(d)));
}

// Time to reduce a tensor with these placements along mesh dim d, to all ranks or to shards; 0 if it is not Partial
// there.
Picoseconds Pricer::reduction(const TensorMeta& meta, const Placements& placements, int64_t d, Collective kind) const {
  return placements[d].is_partial() ? collective(kind, d, local_bytes(meta, placements)) : 0;
}

bool Pricer::defers_past_product(Picoseconds now, Picoseconds later) const {
  return problem_.call.context.partial_inputs_reused ? later < now : later <= now;
}

Pricer::InputsOfPartial Pricer::inputs_of_partial(const Strategy& s, int64_t d) const {
  InputsOfPartial in;
  for (const Group& g : groups_) {
    const Spec& spec = *problem_.call.inputs[g.input];
    const Placement &given = problem_.given(g.input, d), &taken = s.inputs[g.input][d];
    in.moves = in.moves || (given.is_sharded() && !taken.is_partial() && given != taken);
    in.fills = in.fills || (given.is_sharded() && taken.is_partial());
    in.reduces = in.reduces || (given.is_partial() && !taken.is_partial());
    in.scaled = in.scaled || (taken.is_replicate() && !spec.meta().wrapped_number);
    in.multiplied = in.multiplied || (taken.is_replicate() && spec.meta().numel() > 1);
    in.are_numbers = in.are_numbers && spec.meta().numel() == 1;
    in.extreme = taken.is_partial() && (taken.reduce_op() == ReduceOp::kMin || taken.reduce_op() == ReduceOp::kMax);
    if (!taken.is_partial()) continue;
    in.reduction += g.count * reduction(spec.meta(), spec.placements(), d);
    in.elements = std::max(in.elements, spec.meta().numel());
  }
  return in;
}

// A Partial that stays Partial is reduced later, which takes `later`. That is useless where another input is gathered
// to be added to it, or is reduced in this call anyway; where a number is scaled by another, or a minimum or maximum
// shifted, as these are usually read more than once (a sum may still be added to other sums, as of losses); and where
// it is multiplied by a tensor, and the product costs more to reduce than the input. If factors are read again, an
// equal cost is enough: the next operator reads the same input reduced. For views no deferral is useless.
bool Pricer::is_useless_deferral(const InputsOfPartial& in, Picoseconds later) const {
  if (in.reduction == 0 || problem_.is_view) return false;
  const auto grows = [&](const auto& meta) { return meta && meta->numel() > in.elements; };
  const bool is_whole = std::any_of(problem_.metas.tensors.begin(), problem_.metas.tensors.end(), grows);
  const double at_most = (is_whole ? kMaxPadGrowth : kSizeTolerance) * static_cast<double>(in.reduction);
  const bool is_dearer =
      in.multiplied ? !defers_past_product(in.reduction, later) : static_cast<double>(later) > at_most;
  const bool one_extreme = in.extreme && groups_.size() == 1 && groups_[0].count == 1;
  return is_dearer || in.fills || in.reduces || (in.are_numbers && (in.scaled || one_extreme));
}

// A Partial result implies a later reduction. Along a mesh dim it is part of the price
//   * as a reduce-scatter, if a sharded input moves for it: to another dim (the k-split of a matmul), or to all ranks
//     (indices, for the rows of a table, or a column-parallel weight for the result of a row-parallel layer): inputs
//     that were sharded are expected to give sharded results;
//   * as an all-reduce, if an input is sharded for it that was not, or the deferral is useless.
Picoseconds Pricer::made_partials(const Strategy& s) const {
  Picoseconds total = 0;
  for (int64_t d = 0; d < problem_.mesh_ndim(); ++d) {
    Picoseconds later = 0, to_shards = 0;
    for (size_t o = 0; o < s.outputs.size() && o < problem_.metas.tensors.size(); ++o) {
      if (!problem_.metas.tensors[o]) continue;
      later += reduction(*problem_.metas.tensors[o], s.outputs[o], d);
      to_shards += reduction(*problem_.metas.tensors[o], s.outputs[o], d, Collective::kReduceScatter);
    }
    if (later == 0) continue;
    const InputsOfPartial in = inputs_of_partial(s, d);
    const bool is_useless = is_useless_deferral(in, later);
    if (in.moves && !is_useless) {
      total += to_shards;
    } else if (is_useless || begins_to_shard(s, d)) {
      total += later + (later == in.reduction || in.reduces ? 1 : 0);
    }
  }
  return total;
}

// Charges the all-to-all back to the batch sharding: where the other inputs give up their shards for a parameter that
// is sharded along another dim (rows looked up in a table sharded by columns), and where inputs in the batch sharding
// follow an input displaced in that way before.
Picoseconds Pricer::displaced(const Strategy& s) const {
  Picoseconds total = 0;
  for (int64_t d = 0; d < problem_.mesh_ndim(); ++d) {
    bool parameter_moves = false, given_up = false, stays_displaced = false, follows = false;
    for (const Group& g : groups_) {
      const Placement &given = problem_.given(g.input, d), &taken = s.inputs[g.input][d];
      const bool is_parameter = problem_.call.context.is_parameter(g.input);
      parameter_moves = parameter_moves || (is_parameter && given.is_sharded() && taken.is_sharded() && given != taken);
      given_up = given_up || (!is_parameter && given.is_sharded() && taken.is_replicate());
      const bool is_displaced = problem_.is_displaced(g.input, d);
      stays_displaced = stays_displaced || (is_displaced && given == taken);
      follows = follows || (!is_displaced && !is_parameter && given.is_sharded() && given != taken);
    }
    if (!(parameter_moves && given_up) && !(stays_displaced && follows)) continue;
    for (size_t o = 0; o < s.outputs.size() && o < problem_.metas.tensors.size(); ++o) {
      if (!problem_.metas.tensors[o] || !s.outputs[o][d].is_sharded()) continue;
      total += collective(Collective::kAllToAll, d, local_bytes(*problem_.metas.tensors[o], s.outputs[o]));
    }
  }
  return total;
}

}  // namespace dtensor::internal
