#include "dtensor/overlap_communication.h"

#include <c10/util/Exception.h>

namespace dtensor {
using namespace internal;

OverlapCommunication::OverlapCommunication(const OverlapOptions& options)
    : guard_([&](DispatchScope& s) {
        TORCH_CHECK_VALUE(options.chunks >= 1, "[OverlapCommunication] chunks is ", options.chunks,
                          "; give the number of collectives that one exchange becomes, at least 1 (1: none is cut)");
        s.communication_chunks = options.chunks;
      }) {}

}  // namespace dtensor
