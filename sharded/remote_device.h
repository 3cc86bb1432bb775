// The location of a shard: a device, of a rank or of a named worker (torch.distributed.remote_device).
//
//   RemoteDevice("rank:1/cuda:1").rank();       // 1
//   RemoteDevice("trainer0").worker_name();     // "trainer0", on the CPU
//   RemoteDevice(c10::Device("cpu")).str();     // "cpu": of the calling process
//
//   text                          means
//   <worker>/<device>, <worker>   a worker by its name (remote_shards.h), on the CPU by default
//   rank:<n>/<device>, rank:<n>   rank n of the world
//   <device>                      no worker given
//
// A value: equal if all three parts are ("cuda" is not "cuda:0").
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

namespace dtensor::sharded {

class RemoteDevice {
 public:
  // Errors: ValueError "Could not parse remote_device: ..." for a text of another form; c10::Error, c10's own text, for
  // a device that does not exist.
  RemoteDevice(std::string_view text);  // NOLINT: a placement is mostly written as its text
  RemoteDevice(const std::string& text) : RemoteDevice(std::string_view(text)) {}
  RemoteDevice(const char* text) : RemoteDevice(std::string_view(text)) {}
  RemoteDevice(c10::Device device) : device_(device) {}
  RemoteDevice(int64_t rank, c10::Device device) : rank_(rank), device_(device) {}

  const std::optional<std::string>& worker_name() const { return worker_; }
  const std::optional<int64_t>& rank() const { return rank_; }
  c10::Device device() const { return device_; }
  // The same rank or worker, on another device.
  RemoteDevice on(c10::Device device) const;

  std::string str() const;  // in the format of the constructor

  friend bool operator==(const RemoteDevice& a, const RemoteDevice& b) {
    return a.worker_ == b.worker_ && a.rank_ == b.rank_ && a.device_ == b.device_;
  }
  friend bool operator!=(const RemoteDevice& a, const RemoteDevice& b) { return !(a == b); }
  template <typename H>
  friend H AbslHashValue(H h, const RemoteDevice& d) {
    return H::combine(std::move(h), d.worker_, d.rank_, static_cast<int>(d.device_.type()),
                      static_cast<int>(d.device_.index()));
  }

 private:
  std::optional<std::string> worker_;
  std::optional<int64_t> rank_;
  c10::Device device_;
};

std::ostream& operator<<(std::ostream& os, const RemoteDevice& device);

}  // namespace dtensor::sharded

template <>
struct std::hash<dtensor::sharded::RemoteDevice> {
  size_t operator()(const dtensor::sharded::RemoteDevice& d) const;
};
