#include "processes/c10d/first_messages.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "processes/c10d/call_mismatch.h"

namespace dtensor::internal {
namespace {

// Bytes of a part that a message can have, in a group of `size` ranks. Parts that fit cost one exchange, others two.
// But every call sends messages of this size, to all others: in large groups they are small.
int64_t room_for_part(size_t size) {
  constexpr int64_t kMost = 8 << 10, kLeast = 1 << 10, kOfAllMessages = 64 << 10;
  return std::clamp(kOfAllMessages / static_cast<int64_t>(size), kLeast, kMost);
}

struct Header {
  uint64_t fingerprint;
  int64_t bytes;  // from this sender to this receiver
  int64_t large;  // 1: a part that the sender sends to or receives from another rank does not fit a message
};

const uint8_t* message_of(const at::Tensor& messages, int64_t position) {
  return messages.const_data_ptr<uint8_t>() + position * messages.size(1);
}

Header header_of(const at::Tensor& messages, int64_t position) {
  Header header;
  std::memcpy(&header, message_of(messages, position), sizeof header);
  return header;
}

// Whether every part sent to or received from another rank fits; a rank does not send its part for itself.
bool parts_fit(const ByteExchange& exchange, int64_t room) {
  for (int64_t p = 0; p < static_cast<int64_t>(exchange.send_bytes.size()); ++p) {
    if (p != exchange.position && std::max(exchange.send_bytes[p], exchange.receive_bytes[p]) > room) return false;
  }
  return true;
}

}  // namespace

FirstMessages::FirstMessages(const CallMark& mark, const ByteExchange& exchange) {
  const auto n = static_cast<int64_t>(mark.members.size());
  const int64_t room = room_for_part(mark.members.size()), message_bytes = room + static_cast<int64_t>(sizeof(Header));
  send = at::empty({n, message_bytes}, at::kByte);
  receive = at::empty({n, message_bytes}, at::kByte);
  const bool all = parts_fit(exchange, room);
  uint8_t* message = send.mutable_data_ptr<uint8_t>();
  const uint8_t* data = exchange.send.const_data_ptr<uint8_t>();
  for (int64_t p = 0; p < n; ++p, message += message_bytes) {
    const Header header{mark.fingerprint, exchange.send_bytes[p], all ? 0 : 1};
    std::memcpy(message, &header, sizeof header);
    const int64_t bytes = all && p != exchange.position ? exchange.send_bytes[p] : 0;
    if (bytes > 0) std::memcpy(message + sizeof header, data, bytes);
    std::memset(message + sizeof header + bytes, 0, room - bytes);  // no memory of this process leaves it by chance
    data += exchange.send_bytes[p];
  }
}

void FirstMessages::check(Job& job, const CallMark& mark, const ByteExchange& exchange) const {
  const auto n = static_cast<int64_t>(mark.members.size());
  std::vector<int64_t> fingerprints(n);
  for (int64_t p = 0; p < n; ++p) fingerprints[p] = static_cast<int64_t>(header_of(receive, p).fingerprint);
  check_equal(job, fingerprints, mark.sequence, absl::StrCat("is about to make ", mark.what), mark.members,
              mark.position, mark.group_key, mark.group);
  // The same call of the same tensors, but parts that do not fit. Only this rank and the other know.
  std::vector<int64_t> misfits;
  for (int64_t p = 0; p < n; ++p) {
    if (header_of(receive, p).bytes != exchange.receive_bytes[p]) misfits.push_back(p);
  }
  if (misfits.empty()) return;
  const int64_t p = misfits[0];
  const bool mine = static_cast<int64_t>(misfits.size()) * 2 > n - 1 && n > 2;
  job.fail_as(mine ? job.rank() : mark.members[p],
              absl::StrCat("rank ", mark.members[p], " has ", header_of(receive, p).bytes, " B for rank ", job.rank(),
                           ", which expects ", exchange.receive_bytes[p], " B, in ", mark.what,
                           ": a rank's part has another size than its layout says; from_local() with run_check = true ",
                           "finds out which"));
  job.check();
}

bool FirstMessages::hold_all() const {
  for (int64_t p = 0; p < receive.size(0); ++p) {
    if (header_of(receive, p).large != 0) return false;
  }
  return true;
}

void FirstMessages::copy_to(ByteExchange& exchange) const {
  uint8_t* to = exchange.receive.mutable_data_ptr<uint8_t>();
  const uint8_t* own = exchange.send.const_data_ptr<uint8_t>();
  for (int64_t p = 0; p < exchange.position; ++p) own += exchange.send_bytes[p];
  for (int64_t p = 0; p < static_cast<int64_t>(exchange.receive_bytes.size()); ++p) {
    const int64_t bytes = exchange.receive_bytes[p];
    const uint8_t* from = p == exchange.position ? own : message_of(receive, p) + sizeof(Header);
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  }
}

}  // namespace dtensor::internal
