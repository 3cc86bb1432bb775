#include "checkpoint/agreement.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <optional>

#include "comm/error_message.h"

namespace dtensor::internal {
namespace {

// How long a process works before it reports that it still does: far below any deadline.
constexpr std::chrono::milliseconds kPatience(200);
const char* const kWorking = "\x01working";

std::string first_of(const DeviceMesh& ranks, const std::vector<std::string>& errors) {
  for (size_t i = 0; i < errors.size(); ++i) {
    if (!errors[i].empty()) return (ranks.defined() ? c10::str("rank ", ranks.ranks()[i], ": ") : "") + errors[i];
  }
  return "";
}

// The error's text; "" if there is none.
std::string error_of(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const std::exception& e) {
    return message_of(e);
  } catch (...) {
    return "something was thrown that is no std::exception";
  }
}

}  // namespace

void agree_that_all_is_well(const DeviceMesh& ranks, const std::string& error, std::string_view op) {
  const std::string first = first_of(ranks, gather_texts(ranks, error, op));
  TORCH_CHECK(first.empty(), first);
}

std::string run_on_all(const DeviceMesh& ranks, const std::function<void()>& work, std::string_view op) {
  if (!ranks.defined()) return error_of(work);
  std::future<std::string> running;
  std::optional<std::string> error;  // when it is over
  try {
    running = std::async(std::launch::async, [&work] { return error_of(work); });
  } catch (const std::exception& e) {  // no thread to be had
    error = message_of(e);
  }
  for (;;) {
    if (!error && running.wait_for(kPatience) == std::future_status::ready) error = running.get();
    const std::vector<std::string> all = gather_texts(ranks, error ? *error : kWorking, op);
    if (std::find(all.begin(), all.end(), kWorking) == all.end()) return first_of(ranks, all);
  }
}

}  // namespace dtensor::internal
