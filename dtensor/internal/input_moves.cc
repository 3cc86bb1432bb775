#include "dtensor/internal/input_moves.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "comm/scope.h"
#include "dtensor/extend/dispatch_scope.h"
#include "dtensor/extend/reduced_forms.h"
#include "dtensor/internal/executor.h"
#include "plan/plan_many.h"

namespace dtensor {
namespace {

// Why inputs `moving` move.
CommCause cause_of(const OpInfo& info, const Inputs& in, const std::vector<size_t>& moving) {
  std::string names;
  for (const size_t k : moving)
    absl::StrAppend(&names, names.empty() ? "" : ", ", arg_name(info, in, static_cast<int>(k)));
  return {info.name, std::move(names), module_path(in), /*implicit=*/true};
}

struct Moving {
  size_t input;
  ReducedForm form;
};

void run_together(const OpInfo& info, const Inputs& in, std::vector<Moving>& moving) {
  std::vector<size_t> inputs;
  for (const Moving& m : moving) inputs.push_back(m.input);
  const CommCause cause = cause_of(info, in, inputs);
  if (moving.size() == 1) {
    ReducedForm& form = moving.front().form;
    form.locals = run_plan(*form.plan, form.parts, cause);
    return;
  }
  std::vector<std::shared_ptr<const RedistributePlan>> plans;
  std::vector<RankTensors> locals;
  for (const Moving& m : moving) {
    plans.push_back(m.form.plan);
    locals.push_back(m.form.parts);
  }
  std::vector<RankTensors> moved =
      run_plans(batch_plans(std::move(plans), current_dispatch_scope().limits), std::move(locals), cause);
  for (size_t n = 0; n < moving.size(); ++n) moving[n].form.locals = std::move(moved[n]);
}

bool is_written(const OpInfo& info, const Inputs& in, size_t k) { return info.args[in.args[k]].written; }

RankTensors copies(RankTensors locals) {
  LocalGuard guard;
  for (at::Tensor& local : locals) local = local.clone();
  return locals;
}

// What travels of `t` by the plan: it, or what it was expanded from.
at::Tensor travelling(const at::Tensor& t, const RedistributePlan& plan) {
  const Shape& sizes = plan.tensor.sizes;
  const DTensorMeta& meta = meta_of(t);
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

// Expanded as `spec` is.
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

// What communicates, in one go; but what may be known by what another one becomes waits for that.
void run_communicating(const OpInfo& info, const Decision& decision, const Inputs& in,
                       const std::vector<at::Tensor>& tensors, std::vector<size_t> waiting,
                       std::vector<RankTensors>& locals) {
  while (!waiting.empty()) {
    std::vector<Moving> moving;
    std::vector<size_t> next;
    std::vector<std::pair<size_t, size_t>> alike;  // an input, and the one that it is once more
    for (const size_t k : waiting) {
      const at::Tensor& t = tensors[k];
      const auto& plan = decision.input_plans[k];
      if (std::optional<RankTensors> known = find_known(t, *plan)) {
        // Views keep them, and whoever writes to them does not mean what is remembered.
        locals[k] = is_written(info, in, k) || info.is_view ? copies(*known) : *std::move(known);
        continue;
      }
      const auto tells = [&](const Moving& m) { return will_tell(m.form, tensors[m.input], t, *plan); };
      const auto is_alike = [&](const Moving& m) {
        return in.tensors[m.input].is_same(in.tensors[k]) && decision.input_plans[m.input] == plan &&
               !is_written(info, in, m.input);
      };
      const auto same = std::find_if(moving.begin(), moving.end(), is_alike);
      if (same != moving.end() && !is_written(info, in, k)) {
        alike.emplace_back(k, same->input);
      } else if (std::any_of(moving.begin(), moving.end(), tells)) {
        next.push_back(k);
      } else {
        moving.push_back({k, choose_move(t, plan)});
      }
    }
    if (!moving.empty()) run_together(info, in, moving);
    for (Moving& m : moving) {
      const size_t k = m.input;
      if (is_written(info, in, k)) {
        locals[k] = std::move(m.form.locals);
        continue;
      }
      locals[k] = finish_move(tensors[k], decision.input_plans[k]->to.placements(), std::move(m.form));
      if (info.is_view) locals[k] = copies(std::move(locals[k]));
    }
    for (const auto& [k, m] : alike) locals[k] = locals[m];
    waiting = std::move(next);
  }
}

}  // namespace

std::vector<RankTensors> move_inputs(const OpInfo& info, const Decision& decision, const Inputs& in) {
  std::vector<RankTensors> locals(in.tensors.size());
  std::vector<size_t> communicating;
  std::vector<at::Tensor> tensors(in.tensors.size());
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!t.defined()) continue;
    const auto& plan = decision.input_plans[k];
    if (!plan) {
      const bool reads = !info.is_view && !info.args[in.args[k]].overwritten;
      locals[k] = (reads ? meta_of(t) : memory_of(t)).locals;
      continue;
    }
    tensors[k] = travelling(t, *plan);
    if (plan->is_local()) {
      locals[k] = run_plan(*plan, meta_of(tensors[k]).locals, {});
    } else {
      communicating.push_back(k);
    }
  }
  if (!communicating.empty()) run_communicating(info, decision, in, tensors, std::move(communicating), locals);
  for (size_t k = 0; k < locals.size(); ++k) {
    if (tensors[k].defined()) expand_as(*decision.computed[k], *decision.input_plans[k], locals[k]);
  }
  for (const int k : in.free_layouts) {
    if (decision.input_plans[k]) replace_contents(in.tensors[k], decision.computed[k], locals[k]);
  }
  return locals;
}

}  // namespace dtensor
