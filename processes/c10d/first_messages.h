// The first messages of each collective on CPU, before any data whose size only the sender knows. Each goes to one
// other member of the group, with a fingerprint of the call and the number of bytes that will follow. Their size
// follows from the number of members. They contain small parts, so that these need no further message.
//
// A backend that gets more or fewer bytes than it expects may end the process; this detects the mismatch first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "processes/c10d/byte_exchange.h"
#include "processes/job/job.h"

namespace dtensor::internal {

// Description of one call, as text and as a number that is equal where ranks make the same call.
struct CallMark {
  std::vector<int64_t> members;
  int64_t position = 0;   // of this rank
  std::string group_key;  // names the group in the store
  std::string group;      // its name for people
  std::string what;       // describe_call()
  int64_t sequence = 0;
  uint64_t fingerprint = 0;
};

class FirstMessages {
 public:
  // Copies the parts for other ranks into the messages, or none if one of them is too large.
  FirstMessages(const CallMark& mark, const ByteExchange& exchange);

  // For an alltoall_base of even parts: a row for each member.
  at::Tensor send, receive;

  // Call when `receive` has arrived. Errors, the same on all ranks, which end the job: the ranks make different calls,
  // or one sends other bytes than another expects; the text names both and blames the rank in the minority.
  void check(Job& job, const CallMark& mark, const ByteExchange& exchange) const;
  // Whether every part of every member came with the messages; else all members exchange them now. REQUIRES: check().
  bool hold_all() const;
  // Copies the received parts, and this rank's part for itself out of exchange.send, to exchange.receive.
  // REQUIRES: hold_all().
  void copy_to(ByteExchange& exchange) const;
};

}  // namespace dtensor::internal
