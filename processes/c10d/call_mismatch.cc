#include "processes/c10d/call_mismatch.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "comm/module_text.h"
#include "processes/job/bounded_store.h"
#include "processes/job/find_culprit.h"

namespace dtensor::internal {
namespace {

// FNV-1a: the same in every process, as absl::Hash is not.
class Hash {
 public:
  explicit Hash(uint64_t seed) : value_(seed ^ 0xcbf29ce484222325u) {}
  Hash& add(std::string_view text) {
    for (const char c : text) add_byte(static_cast<unsigned char>(c));
    add_byte(0xff);
    return *this;
  }
  Hash& add(int64_t number) {
    for (int i = 0; i < 8; ++i) add_byte(static_cast<unsigned char>(number >> (8 * i)));
    return *this;
  }
  uint64_t value() const { return value_; }

 private:
  void add_byte(unsigned char byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }
  uint64_t value_;
};

}  // namespace

DebugLevel debug_level() {
  const char* value = std::getenv("DTENSOR_DEBUG");
  const std::string_view level = value == nullptr ? "" : value;
  if (level == "off") return DebugLevel::kOff;
  if (level.empty() || level == "info") return DebugLevel::kInfo;
  TORCH_CHECK_VALUE(level == "detail", "DTENSOR_DEBUG is \"", std::string(level), "\"; it must be off, info or detail");
  return DebugLevel::kDetail;
}

std::string describe_collective(Collective c, const CommCall& call) {
  const CommEvent& event = call.event;
  std::string text = absl::StrCat(std::string(to_string(c)), " over ", call.group->name);
  if (!event.cause.op.empty()) absl::StrAppend(&text, " for ", event.cause.op);
  if (!event.cause.argument.empty()) absl::StrAppend(&text, ", argument ", event.cause.argument);
  if (!event.cause.module_path.empty()) absl::StrAppend(&text, ", ", in_module(event.cause.module_path));
  if (event.layout_change) {
    absl::StrAppend(&text, ": ", to_string(*event.layout_change, event.more_tensors));
  } else {
    absl::StrAppend(&text, ": ", c10::toString(event.dtype));
  }
  absl::StrAppend(&text, ", ", event.bytes, " B");
  return text;
}

std::string describe_call(int64_t sequence, Collective c, const CommCall& call, int64_t moved_before) {
  std::string text = absl::StrCat("call ", sequence, ": ", describe_collective(c, call));
  if (moved_before > 0) absl::StrAppend(&text, ", of a tensor that call ", moved_before, " moved before");
  return text;
}

uint64_t fingerprint(uint64_t before, int64_t sequence, Collective c, const CommCall& call, int64_t moved_before) {
  const CommEvent& event = call.event;
  Hash hash(before);
  hash.add(sequence)
      .add(moved_before)
      .add(static_cast<int64_t>(c))
      .add(call.group->name)
      .add(call.group->size)
      .add(event.cause.op);
  hash.add(event.cause.argument).add(static_cast<int64_t>(event.dtype)).add(event.bytes);
  if (event.layout_change) hash.add(event.layout_change->text()).add(event.more_tensors);
  return hash.value();
}

void check_equal(Job& job, absl::Span<const int64_t> fingerprints, int64_t sequence, const std::string& what,
                 absl::Span<const int64_t> members, int64_t position, const std::string& key, const std::string& name) {
  const auto n = static_cast<int64_t>(members.size());
  const auto begin = fingerprints.begin(), end = fingerprints.end();
  if (std::all_of(begin, end, [&](int64_t v) { return v == *begin; })) return;
  // All ranks see the difference; now each posts its call.
  const std::string prefix = absl::StrCat("mismatch/", key, "/", sequence, "/");
  std::string error = absl::StrCat("ranks do not make the same calls over ", name, ":");
  try {
    job.store()->set(absl::StrCat(prefix, position), what);
    for (int64_t p = 0; p < n; ++p) {
      job.store()->wait({absl::StrCat(prefix, p)}, std::chrono::seconds(2));
      absl::StrAppend(&error, p > 0 ? "; " : " ", "rank ", members[p], " ",
                      job.store()->get_to_str(absl::StrCat(prefix, p)));
    }
  } catch (const std::exception&) {
    absl::StrAppend(&error, " rank ", job.rank(), " ", what, " (the others did not say)");
  }
  job.fail_as(members[odd_one_out(fingerprints)], error);
  job.check();
}

}  // namespace dtensor::internal
