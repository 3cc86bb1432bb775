#include "dtensor/dispatch/internal/input_moves.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "comm/scope.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/redistribution/internal/executor.h"
#include "dtensor/tensor/dispatch_scope.h"
#include "dtensor/tensor/module_of_call.h"
#include "plan/plan_many.h"
#include "plan/redistribute_planner.h"

namespace dtensor::internal {
namespace {

// An input to redistribute for a call.
struct Input {
  const InputsOfCall* call;
  size_t number;
  at::Tensor travelling;
  RankTensors* result;
  std::shared_ptr<const RedistributePlan> plan;
  std::shared_ptr<const RedistributePlan> then = nullptr;  // the following plan; null: none

  const at::Tensor& given() const { return call->in.tensors[number]; }
  bool is_written() const { return call->info.args[call->in.arg_of[number]].written; }
};

struct Moving {
  Input input;
  PendingMove move;
  RankTensors locals = {};  // after it
};

// The cause of the redistribution. Of several calls one is named.
CommCause cause_of(const std::vector<Moving>& moving) {
  const InputsOfCall& first = *moving.front().input.call;
  std::string names;
  size_t others = 0;
  for (const Moving& m : moving) {
    if (m.input.call != &first) {
      ++others;
      continue;
    }
    absl::StrAppend(&names, names.empty() ? "" : ", ",
                    arg_name(first.info, first.in, static_cast<int>(m.input.number)));
  }
  if (others > 0) absl::StrAppend(&names, " and ", others, " more");
  return {first.info.name, std::move(names),
          others > 0 ? current_scope().module_path : module_of_call(first.in.tensors),
          /*implicit=*/true};
}

// The local tensors of `input` after its plan, if they are cached. Reports it.
std::optional<RankTensors> reuse(const Input& input) {
  std::optional<RankTensors> known = find_cached_layout(input.travelling, *input.plan);
  if (!known || !reports_reuse()) return known;
  const auto& [info, decision, in] = *input.call;
  const std::string name = arg_name(info, in, static_cast<int>(input.number));
  report_reuse({info.name, name, module_of_call(in.tensors), /*implicit=*/true}, *input.plan);
  return known;
}

void run_together(std::vector<Moving>& moving) {
  const CommCause cause = cause_of(moving);
  if (moving.size() == 1) {
    Moving& only = moving.front();
    only.locals = run_plan(*only.move.plan, only.move.of.locals, cause);
    return;
  }
  std::vector<std::shared_ptr<const RedistributePlan>> plans;
  std::vector<RankTensors> locals;
  for (const Moving& m : moving) {
    plans.push_back(m.move.plan);
    locals.push_back(m.move.of.locals);
  }
  std::vector<RankTensors> moved =
      run_plans(batch_plans(std::move(plans), current_dispatch_scope().hints.limits), std::move(locals), cause);
  for (size_t n = 0; n < moving.size(); ++n) moving[n].locals = std::move(moved[n]);
}

RankTensors copies(RankTensors locals) {
  LocalGuard guard;
  for (at::Tensor& local : locals) local = local.clone();
  return locals;
}

// The tensor that the plan moves: `t`, or its unexpanded base.
at::Tensor travelling(const at::Tensor& t, const RedistributePlan& plan) {
  const Shape& sizes = plan.tensor.sizes;
  const DTensorMeta& meta = meta_for_read(t);
  if (sizes == meta.spec->sizes()) return t;
  RankTensors parts = meta.locals;
  LocalGuard guard;
  for (at::Tensor& part : parts) {
    for (int64_t d = 0; d < part.dim(); ++d) {
      if (sizes[d] != meta.spec->sizes()[d]) part = part.narrow(d, 0, 1);
    }
  }
  return make_view(Spec::get(meta.spec->mesh(), meta.spec->placements(), plan.tensor), std::move(parts), t,
                   t.storage_offset());
}

// Expands to the sizes of `spec`.
void expand_as(const Spec& spec, const RedistributePlan& plan, RankTensors& locals) {
  const Shape& sizes = plan.tensor.sizes;
  if (sizes == spec.sizes()) return;
  LocalGuard guard;
  for (at::Tensor& local : locals) {
    std::vector<int64_t> whole = local.sizes().vec();
    for (size_t d = 0; d < whole.size(); ++d) {
      if (sizes[d] != spec.sizes()[d]) whole[d] = spec.sizes()[d];
    }
    local = local.expand(whole);
  }
}

// The same input in two moves, of which the first only reduces it; nullopt: there is none, or its result would not be
// cached.
std::optional<Input> by_reduced_copy(const Input& input) {
  const at::Tensor& t = input.travelling;
  if (!spec_of(t)->has_partial() || input.is_written() || input.call->info.is_view) return std::nullopt;
  const SpecPtr reduced = spec_of(t)->with_placements(without_partials(spec_of(t)->placements()));
  const auto& limits = current_dispatch_scope().hints.limits;
  Input result = input;
  result.plan = cached_plan_within(spec_of(t), reduced->placements(), limits);
  result.then = cached_plan_within(reduced, input.plan->to.placements(), limits);
  return result.plan && result.then && will_be_cached(t, *result.plan) ? std::optional(result) : std::nullopt;
}

// Several views of one Partial tensor, as in x.mm(x.t()), are reduced once and redistributed from there, if that takes
// less time than separately.
void reduce_views_once(std::vector<Input>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].then) continue;
    const auto first = by_reduced_copy(inputs[i]);
    if (!first) continue;
    const Input& own = inputs[i];
    const PendingMove move = choose_move(own.travelling, first->plan), own_move = choose_move(own.travelling, own.plan);
    double together = move.plan->seconds + first->then->seconds, apart = own_move.plan->seconds;
    std::vector<std::pair<size_t, Input>> group = {{i, *first}};
    for (size_t k = 0; k < inputs.size(); ++k) {
      const at::Tensor& t = inputs[k].travelling;
      const auto other = k != i && !inputs[k].then ? by_reduced_copy(inputs[k]) : std::nullopt;
      if (!other || !will_provide(move, own.travelling, t, *other->plan)) continue;
      together += other->then->seconds;
      apart += will_provide(own_move, own.travelling, t, *inputs[k].plan) ? 0 : inputs[k].plan->seconds;
      group.emplace_back(k, *other);
    }
    if (together >= apart) continue;
    for (auto& [k, input] : group) inputs[k] = std::move(input);
  }
}

// Batches all moves that communicate. An input that another move will provide is resolved in the next round.
void run_communicating(std::vector<Input> waiting) {
  reduce_views_once(waiting);
  const auto go_on = [](Input input, RankTensors parts, std::vector<Input>& next) {
    input.travelling = make_alias(spec_of(input.travelling)->with_placements(input.plan->to.placements()), parts);
    input.plan = std::exchange(input.then, nullptr);
    if (!input.plan->is_local()) return next.push_back(std::move(input));
    *input.result = run_plan(*input.plan, std::move(parts), {});
  };
  while (!waiting.empty()) {
    std::vector<Moving> moving;
    std::vector<Input> next;
    std::vector<std::pair<Input, RankTensors*>> alike;  // an input, and the destination of an equal one
    for (Input& input : waiting) {
      if (std::optional<RankTensors> known = reuse(input)) {
        if (input.then) {
          go_on(std::move(input), *std::move(known), next);
          continue;
        }
        // Views keep their parts, and a write must not change the cached tensor.
        *input.result = input.is_written() || input.call->info.is_view ? copies(*known) : *std::move(known);
        continue;
      }
      const auto provides = [&](const Moving& m) {
        return will_provide(m.move, m.input.travelling, input.travelling, *input.plan);
      };
      const auto is_alike = [&](const Moving& m) {
        // Or handles of the same tensor. A call may write to the parts that it reads, as in x.mul_(x).
        return &meta_without_sync(m.input.given()) == &meta_without_sync(input.given()) && m.input.plan == input.plan &&
               (!m.input.is_written() || m.input.call == input.call) && !m.input.then && !input.then;
      };
      const auto same = std::find_if(moving.begin(), moving.end(), is_alike);
      if (same != moving.end() && !input.is_written()) {
        alike.emplace_back(input, same->input.result);
      } else if (std::any_of(moving.begin(), moving.end(), provides)) {
        next.push_back(std::move(input));
      } else {
        PendingMove move = choose_move(input.travelling, input.plan);
        moving.push_back({std::move(input), std::move(move)});
      }
    }
    if (!moving.empty()) run_together(moving);
    for (Moving& m : moving) {
      if (m.input.is_written()) {
        *m.input.result = std::move(m.locals);
        continue;
      }
      const Placements to = m.input.plan->to.placements();
      RankTensors parts = finish_move(m.input.travelling, to, std::move(m.move), std::move(m.locals));
      if (m.input.then) {
        go_on(std::move(m.input), std::move(parts), next);
        continue;
      }
      *m.input.result = std::move(parts);
      if (m.input.call->info.is_view) *m.input.result = copies(std::move(*m.input.result));
    }
    for (const auto& [input, same] : alike) *input.result = *same;
    waiting = std::move(next);
  }
}

}  // namespace

std::vector<std::vector<RankTensors>> move_inputs(c10::ArrayRef<InputsOfCall> calls) {
  std::vector<std::vector<RankTensors>> result;
  for (const InputsOfCall& call : calls) result.emplace_back(call.in.tensors.size());
  std::vector<Input> communicating, moved;
  for (size_t c = 0; c < calls.size(); ++c) {
    const auto& [info, decision, in] = calls[c];
    for (size_t k = 0; k < in.tensors.size(); ++k) {
      const at::Tensor& t = in.tensors[k];
      if (!t.defined()) continue;
      const auto& plan = decision.input_plans[k];
      if (!plan) {
        const bool reads = !info.is_view && !info.args[in.arg_of[k]].overwritten;
        result[c][k] = (info.always_shares ? meta_without_sync(t)
                        : reads            ? meta_for_read(t)
                                           : meta_for_write(t))
                           .locals;
        continue;
      }
      const Input input{&calls[c], k, travelling(t, *plan), &result[c][k], plan};
      moved.push_back(input);
      if (plan->is_local()) {
        const RankTensors& locals = meta_for_read(input.travelling).locals;
        const bool only_reads =
            !info.is_view && absl::c_none_of(info.args, [](const OpInfo::Arg& arg) { return arg.written; });
        result[c][k] = only_reads ? run_plan_to_read(*plan, locals, {}) : run_plan(*plan, locals, {});
      } else {
        communicating.push_back(input);
      }
    }
  }
  if (!communicating.empty()) run_communicating(std::move(communicating));
  for (const Input& input : moved) {
    expand_as(*input.call->decision.computed[input.number], *input.plan, *input.result);
  }
  for (size_t c = 0; c < calls.size(); ++c) {
    const auto& [info, decision, in] = calls[c];
    for (const int k : in.context.mutable_layouts) {
      if (decision.input_plans[k]) replace_contents(in.tensors[k], decision.computed[k], result[c][k]);
    }
  }
  return result;
}

std::vector<RankTensors> move_inputs(const OpInfo& info, const Decision& decision, const Inputs& in) {
  return std::move(move_inputs(InputsOfCall{info, decision, in}).front());
}

}  // namespace dtensor::internal
