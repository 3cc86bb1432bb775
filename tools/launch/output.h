// The launcher's own standard output and error. Nothing here waits for a reader: a stalled one must not keep the
// launcher from its deadline.
#pragma once

#include <string>

namespace dtensor::launch {

class Output {
 public:
  explicit Output(int fd);  // for the rest of the process's life

  int fd() const { return fd_; }
  void add(const std::string& text);
  bool empty() const { return pending_.empty(); }
  bool full() const { return pending_.size() > kMost; }  // callers that can wait should add no more for now
  // Writes as much as possible without waiting. False, with errno, when there is no reader any more; then added text is
  // dropped.
  bool write_some();

 private:
  static constexpr size_t kMost = 1 << 20;
  const int fd_;
  bool closed_ = false;
  std::string pending_;
};

}  // namespace dtensor::launch
