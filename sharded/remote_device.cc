#include "sharded/remote_device.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <ostream>
#include <system_error>
#include <vector>

#include "absl/hash/hash.h"

namespace dtensor::sharded {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> fields;
  for (size_t end; (end = text.find(separator)) != text.npos; text.remove_prefix(end + 1))
    fields.push_back(text.substr(0, end));
  fields.push_back(text);
  return fields;
}

std::optional<c10::Device> as_device(std::string_view text) {
  try {
    return c10::Device(std::string(text));
  } catch (const c10::Error&) {
    return std::nullopt;
  }
}

std::optional<int64_t> as_rank(std::string_view digits) {
  int64_t rank = 0;
  const char* const end = digits.data() + digits.size();
  if (digits.empty() || digits[0] == '-') return std::nullopt;
  const auto [at, error] = std::from_chars(digits.data(), end, rank);
  if (error != std::errc() || at != end) return std::nullopt;
  return rank;
}

[[noreturn]] void fail(std::string_view text) {
  TORCH_CHECK_VALUE(false, "Could not parse remote_device: ", text,
                    ". The valid format is '<workername>/<device>' or 'rank:<rank>/<device>' or '<device>'");
}

}  // namespace

RemoteDevice::RemoteDevice(std::string_view text) : device_(c10::DeviceType::CPU) {
  const std::vector<std::string_view> fields = split(text, '/');
  if (fields.size() > 2) fail(text);
  // No device is called "rank", and asking LibTorch would make an error, with a stack trace, of each such text.
  if (fields.size() == 1 && fields[0].substr(0, 5) != "rank:") {
    if (const auto device = as_device(text)) {
      device_ = *device;
      return;
    }
  }
  if (fields[0].empty()) fail(text);
  if (fields.size() == 2) device_ = c10::Device(std::string(fields[1]));
  const std::vector<std::string_view> worker = split(fields[0], ':');
  if (worker.size() == 1) {
    worker_ = std::string(worker[0]);
  } else {
    if (worker.size() == 2 && worker[0] == "rank") rank_ = as_rank(worker[1]);
    if (!rank_) fail(text);
  }
}

RemoteDevice RemoteDevice::on(c10::Device device) const {
  RemoteDevice other = *this;
  other.device_ = device;
  return other;
}

std::string RemoteDevice::str() const {
  if (worker_) return *worker_ + "/" + device_.str();
  if (rank_) return "rank:" + std::to_string(*rank_) + "/" + device_.str();
  return device_.str();
}

std::ostream& operator<<(std::ostream& os, const RemoteDevice& device) { return os << device.str(); }

}  // namespace dtensor::sharded

size_t std::hash<dtensor::sharded::RemoteDevice>::operator()(const dtensor::sharded::RemoteDevice& d) const {
  return absl::HashOf(d);
}
