#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tools/launch/rank.h"

namespace dtensor::launch {
namespace {

constexpr size_t kLongestLine = 1 << 20;

}  // namespace

void LineStream::drain(bool last) {
  char buffer[1 << 16];
  while (from_ >= 0) {
    const ssize_t n = read(from_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN && !last) return;
    if (n > 0) {
      log(buffer, static_cast<size_t>(n));
      pending_.append(buffer, static_cast<size_t>(n));
      const size_t newline = pending_.rfind('\n');
      if (newline != std::string::npos) emit(newline + 1);
      if (pending_.size() > kLongestLine) emit(pending_.size());
      if (!last) return;  // let the others have their turn
      continue;
    }
    if (!pending_.empty()) emit(pending_.size());
    close(from_);
    from_ = -1;
    close_log();
  }
}

// Passes on the first `end` bytes of what is pending, as whole lines.
void LineStream::emit(size_t end) {
  std::string text;
  for (size_t begin = 0; begin < end;) {
    const size_t stop = std::min(pending_.find('\n', begin), end);
    text += prefix_;
    text.append(pending_, begin, stop - begin);
    text += '\n';
    begin = stop + 1;
  }
  pending_.erase(0, end);
  to_->add(text);
}

// A log that cannot be written ends there: the job is worth more.
void LineStream::log(const char* data, size_t size) {
  while (log_ >= 0 && size > 0) {
    const ssize_t n = write(log_, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      to_->add("launch: cannot write " + log_path_ + " any more: " + strerror(errno) + "\n");
      return close_log();
    }
    data += n;
    size -= static_cast<size_t>(n);
  }
}

void LineStream::close_log() {
  if (log_ >= 0) close(log_);
  log_ = -1;
}

}  // namespace dtensor::launch
