#include "dtensor/context_parallel.h"

#include <c10/util/Exception.h>

#include <memory>

namespace dtensor {
using namespace internal;

ContextParallel::ContextParallel(const std::string& mesh_dim, const ContextParallelOptions& options)
    : guard_([&](DispatchScope& s) {
        TORCH_CHECK_VALUE(!mesh_dim.empty(),
                          "[ContextParallel] `mesh_dim` is empty; give the name of the mesh dim that "
                          "shards the sequence, such as \"cp\"");
        s.context_parallel = std::make_shared<const ContextParallelSetting>(ContextParallelSetting{mesh_dim, options});
      }) {}

}  // namespace dtensor
