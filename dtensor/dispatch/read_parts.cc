#include "dtensor/dispatch/read_parts.h"

#include <c10/util/Exception.h>

#include <string>

#include "dtensor/dispatch/call_hook.h"
#include "dtensor/layout_cache/storage_cache.h"

namespace dtensor::internal {

bool has_parts(const at::Tensor& t) {
  const DTensorMeta& meta = meta_without_sync(t);
  if (!meta.may_need_sync) return true;
  const auto& observer = meta.storage->observer;
  return !(meta.arriving && meta.arriving->needs_all_ranks()) && !(observer && observer->needs_all_ranks());
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
  if (CallHook* hook = CallHook::watching()) hook->before_unseen_writes(storage);
}

}  // namespace dtensor::internal
