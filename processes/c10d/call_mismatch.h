// Detects that ranks do not call the same collectives, before they exchange mismatched data: compares calls, and makes
// the error. call_comparison.h decides when.
//
// DTENSOR_DEBUG=detail: before each collective the ranks of its group compare their calls. info (the default): on CPU
// they compare them with the first messages of each collective (first_messages.h); on GPUs a running hash of all calls,
// at every 64th call of a group and at barriers, so that a mismatch that went by unnoticed still becomes an error. off:
// nothing is compared.
#pragma once

#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "comm/comm_call.h"
#include "processes/job/job.h"

namespace dtensor::internal {

enum class DebugLevel { kOff, kInfo, kDetail };

// The value of DTENSOR_DEBUG. Error (c10::Error): an unknown value.
DebugLevel debug_level();

// "call 12: all_reduce over tp for aten::mm, argument self: f32[8, 8](P(sum)) -> (R) @ mesh(tp=4), 384 B"; of a tensor
// that call `moved_before` has moved before, "..., of a tensor that call 9 moved before".
std::string describe_call(int64_t sequence, Collective c, const CommCall& call, int64_t moved_before = 0);
// The same without the number of the call and the history of the tensor.
std::string describe_collective(Collective c, const CommCall& call);

// Equal on all ranks of the group if they make the same call. Covers the same properties as describe_call(); another
// value for another `before`, the fingerprint of the call before.
uint64_t fingerprint(uint64_t before, int64_t sequence, Collective c, const CommCall& call, int64_t moved_before = 0);

// Where the `fingerprints` of the members differ, by position, they exchange their calls through the store, and all get
// the same error, which fails the job and blames a rank of the smallest set. `sequence`: of the call at which they are
// compared; `what`: this rank's call; `key`: names the group in the store; `name`: for people.
void check_equal(Job& job, absl::Span<const int64_t> fingerprints, int64_t sequence, const std::string& what,
                 absl::Span<const int64_t> members, int64_t position, const std::string& key, const std::string& name);

}  // namespace dtensor::internal
