#include "dtensor/dispatch/internal/replaced_inputs.h"

#include <c10/util/Exception.h>

#include <utility>

#include "absl/strings/match.h"
#include "dtensor/dispatch/reduce_first.h"
#include "dtensor/layout_cache/cached_layouts.h"
#include "dtensor/layout_cache/report_reuse.h"
#include "dtensor/parallel/parameter_group.h"
#include "dtensor/tensor/module_of_call.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

// Whether the call computes with parameters of groups and with other tensors.
bool computes_with_parameters(const OpInfo& info, const Inputs& in) {
  bool any = false, others = false;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    const at::Tensor& t = in.tensors[k];
    if (!t.defined()) continue;
    if (!parameter_group_of(t)) {
      others |= t.dim() > 0;
    } else if (info.args[in.args[k]].written) {
      return false;
    } else {
      any = true;
    }
  }
  return any && others;
}

}  // namespace

void use_reduced_copies(const OpInfo& info, c10::ArrayRef<c10::IValue> args, Inputs& in) {
  if (info.is_view) return;
  for (size_t k = 0; k < in.tensors.size(); ++k) {
    at::Tensor& t = in.tensors[k];
    if (!t.defined() || info.args[in.args[k]].written || !spec_of(t)->has_partial()) continue;
    at::Tensor reduced = find_reduced_copy(t);
    if (reduced.defined() && reports_reuse())
      report_reduced_copy(
          {info.name, arg_name(info, in, static_cast<int>(k)), module_of_call(in.tensors), /*implicit=*/true}, t);
    if (!reduced.defined() && is_likely_used_beside(info, args, t)) reduced = reduce_first(info, in.args[k], t);
    if (reduced.defined()) t = std::move(reduced);
  }
}

void use_gathered_parameters(const OpInfo& info, Inputs& in) {
  if (info.is_view || !computes_with_parameters(info, in) || is_update(info, in)) return;
  if (absl::StartsWith(info.name, "aten::_foreach")) return;
  for (at::Tensor& t : in.tensors) {
    if (!t.defined()) continue;
    const auto group = parameter_group_of(t);
    if (!group) continue;
    at::Tensor gathered;
    try {
      gathered = group->gathered(t);
    } catch (c10::Error& e) {
      const auto& name = meta_without_sync(t).name;
      e.add_context(
          c10::str("in ", info.name, ", which takes ", name ? *name : "a parameter", " of a fully_shard() group"));
      throw;
    }
    if (gathered.defined()) t = std::move(gathered);
  }
}

void note_cast_of_parameter(const OpInfo& info, const at::Tensor& from, c10::ArrayRef<c10::IValue> results) {
  if (info.name != "aten::_to_copy") return;
  if (const auto group = parameter_group_of(from)) group->add_cast(from, results.back().toTensor());
}

}  // namespace dtensor::internal
