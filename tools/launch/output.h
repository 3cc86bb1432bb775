// What tools/launch writes to its own standard output and error. Nothing here waits for a reader: one that stalls must
// not keep the launcher from its deadline.
#pragma once

#include <string>

namespace dtensor::launch {

class Output {
 public:
  explicit Output(int fd);  // for the rest of the process's life

  int fd() const { return fd_; }
  void add(const std::string& text);
  bool empty() const { return pending_.empty(); }
  bool full() const { return pending_.size() > kMost; }  // who can wait should add no more for now
  // Writes as much as is taken at once. False, with errno, when nobody reads any more; then what is added is dropped.
  bool write_some();

 private:
  static constexpr size_t kMost = 1 << 20;
  const int fd_;
  bool closed_ = false;
  std::string pending_;
};

}  // namespace dtensor::launch
