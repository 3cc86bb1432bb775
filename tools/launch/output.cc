#include "tools/launch/output.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

namespace dtensor::launch {
namespace {

// O_NONBLOCK is of a description, which others have too, such as the user's shell. A terminal can be opened again, and
// has to be: one that is ready may have less room than a write needs, which would wait then.
int without_waiting(int fd) {
  if (isatty(fd) == 0) return fd;
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const int own = open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  return own < 0 ? fd : own;  // such as another user's
}

}  // namespace

Output::Output(int fd) : fd_(without_waiting(fd)) {}

void Output::add(const std::string& text) {
  if (!closed_) pending_ += text;
}

// A pipe that is ready takes PIPE_BUF bytes without waiting.
bool Output::write_some() {
  size_t done = 0;
  bool good = true;
  while (done < pending_.size()) {
    pollfd ready = {fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) != 1) break;
    const ssize_t n = write(fd_, pending_.data() + done, std::min<size_t>(pending_.size() - done, PIPE_BUF));
    if (n == 0 || (n < 0 && (errno == EINTR || errno == EAGAIN))) break;
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
