#include "tools/launch/output.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace dtensor::launch {

void Output::add(const std::string& text) {
  if (!closed_) pending_ += text;
}

// A pipe that is ready takes PIPE_BUF bytes without waiting. O_NONBLOCK would also be that of whoever has the other end
// of this description, such as the user's shell.
bool Output::write_some() {
  size_t done = 0;
  bool good = true;
  while (done < pending_.size()) {
    pollfd ready = {fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) break;
    const ssize_t n = write(fd_, pending_.data() + done, std::min<size_t>(pending_.size() - done, PIPE_BUF));
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) break;
    if (n < 0) {
      good = false;
      break;
    }
    done += static_cast<size_t>(n);
  }
  const int error = errno;
  closed_ |= !good;
  pending_.erase(0, good ? done : pending_.size());
  errno = error;
  return good;
}

}  // namespace dtensor::launch
