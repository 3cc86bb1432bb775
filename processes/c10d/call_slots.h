// What the ranks of a group tell each other at each collective on CPU before any data moves whose size only they know:
// a message of one fixed size to every other member, with a fingerprint of the call and the bytes that will follow.
// Small parts travel in it, so that they cost no message more. Internal to the communicator.
//
// A backend that gets more or fewer bytes than it expects may end the process; this finds that out first.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "processes/c10d/packed_exchange.h"
#include "processes/job/job.h"

namespace dtensor {

// Of one call, in words and as a number that is equal where ranks make the same call.
struct CallMark {
  std::vector<int64_t> members;
  int64_t position = 0;   // of this rank
  std::string group_key;  // names the group in the store
  std::string group;      // its name for people
  std::string what;       // describe_call()
  int64_t sequence = 0;
  uint64_t fingerprint = 0;
};

class CallSlots {
 public:
  // What `packed` sends, or as much of it as slots can hold: nothing if a part is too large.
  CallSlots(const CallMark& mark, const PackedExchange& packed);

  // For an alltoall_base of even parts.
  at::Tensor send, receive;

  // When `receive` has come. Errors, on all ranks the same and the job's end: the ranks make different calls, or one
  // sends other bytes than another expects; the text names both and blames who is alone.
  void check(Job& job, const CallMark& mark, const PackedExchange& packed) const;
  // Whether every part of every member came with the slots; else all members exchange them now. REQUIRES: check().
  bool hold_all() const;
  // REQUIRES: hold_all().
  void copy_to(PackedExchange& packed) const;
};

}  // namespace dtensor
