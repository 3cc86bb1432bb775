#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tools/launch/rank.h"

namespace dtensor::launch {
namespace {

constexpr size_t kLongestLine = 1 << 20;

bool write_all(int fd, const char* data, size_t size) {
  while (size > 0) {
    const ssize_t n = write(fd, data, size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {  // somebody else made it so
      pollfd ready = {fd, POLLOUT, 0};
      poll(&ready, 1, -1);
      continue;
    }
    if (n < 0) return false;
    data += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

bool LineStream::drain(bool last) {
  char buffer[1 << 16];
  bool written = true;
  while (from_ >= 0) {
    const ssize_t n = read(from_, buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN && !last) return written;
    if (n > 0) {
      pending_.append(buffer, static_cast<size_t>(n));
      const size_t newline = pending_.rfind('\n');
      if (newline != std::string::npos) written &= emit(newline + 1);
      if (pending_.size() > kLongestLine) written &= emit(pending_.size());
      if (!last) return written;  // let the others have their turn
      continue;
    }
    if (!pending_.empty()) written &= emit(pending_.size());
    close(from_);
    from_ = -1;
  }
  return written;
}

// Writes the first `end` bytes of what is pending, as whole lines.
bool LineStream::emit(size_t end) {
  std::string text;
  for (size_t begin = 0; begin < end;) {
    const size_t stop = std::min(pending_.find('\n', begin), end);
    text += prefix_;
    text.append(pending_, begin, stop - begin);
    text += '\n';
    begin = stop + 1;
  }
  pending_.erase(0, end);
  return write_all(to_, text.data(), text.size());
}

}  // namespace dtensor::launch
