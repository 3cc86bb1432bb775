#include "dtensor/internal/partial_writes.h"

#include "comm/scope.h"
#include "dtensor/extend/library_code.h"
#include "dtensor/extend/redistribute_below_autograd.h"
#include "dtensor/extend/representation.h"

namespace dtensor {
namespace {

// Every tensor that is written to, with its index among the inputs.
template <typename F>
void for_each_partial_written(const OpInfo& info, const Inputs& in, const F& f) {
  for (size_t a = 0; a < info.args.size(); ++a) {
    if (!info.args[a].written) continue;
    for (int k = in.slots[a].first; k < in.slots[a].first + in.slots[a].count; ++k) {
      if (in.tensors[k].defined() && spec_of(in.tensors[k])->has_partial()) f(k);
    }
  }
}

}  // namespace

bool may_reduce_written(const OpInfo& info, const Inputs& in) {
  if (!in_backward() && LibraryCode::current() == nullptr) return false;
  bool any = false, shared = false;
  for_each_partial_written(info, in, [&](int k) {
    const DTensorMeta& meta = peek_meta(in.tensors[k]);
    any = true;
    shared = shared || meta.storage->shared || meta.storage->given_away || meta.storage->origin;
  });
  return any && !shared;
}

void reduce_written(const OpInfo& info, const Inputs& in) {
  for_each_partial_written(info, in, [&](int k) {
    const at::Tensor& t = in.tensors[k];
    const CommCause cause{info.name, arg_name(info, in, k), module_path(in), /*implicit=*/true};
    const at::Tensor reduced = redistribute_below_autograd(t, without_partials(spec_of(t)->placements()), cause);
    replace_contents(t, meta_of(reduced).spec, meta_of(reduced).locals);
  });
}

}  // namespace dtensor
