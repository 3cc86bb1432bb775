#include "dtensor/dispatch/read_parts.h"

#include <c10/util/Exception.h>

#include <string>

#include "dtensor/dispatch/internal/deferred_gradients.h"
#include "dtensor/layout_cache/storage_cache.h"
#include "dtensor/views/copied_view.h"

namespace dtensor::internal {
namespace {

// Whether updating `storage`, of a copied view, needs a collective. Views that a local operator copied on some ranks
// only are read again from the rank's own part.
bool is_out_of_date(const LocalStorage& storage) {
  const ViewOrigin* origin = origin_of(storage);
  if (origin == nullptr) return false;
  const DTensorMeta& base = meta_without_sync(origin->base);
  if (is_out_of_date(*base.storage)) return true;
  const bool is_current =
      origin->seen.load(std::memory_order_relaxed) == base.storage->writes.load(std::memory_order_relaxed);
  return !is_current && (origin->moved || (base.arriving && base.arriving->needs_all_ranks()));
}

}  // namespace

bool has_parts(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (!meta.may_need_sync) return true;
  return !(meta.arriving && meta.arriving->needs_all_ranks()) && !is_out_of_date(*meta.storage);
}

const RankTensors& read_parts(const at::Tensor& t, std::string_view function) {
  TORCH_CHECK(has_parts(t), "[", std::string(function), "] the parts of ", spec_of(t)->to_string(),
              " are not there yet: they are fetched from other ranks when an operator reads the tensor, and reading "
              "parts never communicates. Call fetch_parts(t) on all ranks of ",
              spec_of(t)->mesh().to_string(), " first.");
  return meta_for_read(t).locals;
}

void allow_user_writes(const at::Tensor& t) {
  LocalStorage& storage = *meta_for_read(t).storage;
  storage.user_may_write = true;
  mark_written(storage);
  if (!any_deferred_calls()) return;
  for (const auto& calls : DeferredGradients::all_backwards()) calls->copy_before_unseen_writes(storage);
}

}  // namespace dtensor::internal
