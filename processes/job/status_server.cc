#include "processes/job/status_server.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <utility>

namespace dtensor::internal {
namespace {

constexpr int kSend_ms = 1000;  // time limit for a client to read the whole answer, while others wait
constexpr int kPause_ms = 100;  // before the next try where no connection can be accepted
constexpr int kQuestions = 64;  // that wait for an answer

// A socket that listens at `name`, or -1.
int listen_at(const std::string& name) {
  sockaddr_un address = {};
  if (name.size() + 1 > sizeof address.sun_path) return -1;
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);  // after the zero of abstract names
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return -1;
  if (::bind(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0 && ::listen(fd, kQuestions) == 0) return fd;
  ::close(fd);
  return -1;
}

bool is_same_user(int fd) {
  ucred other = {};
  socklen_t size = sizeof other;
  return ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) == 0 && other.uid == ::geteuid();
}

}  // namespace

StatusServer::StatusServer(const RankAddress& address, std::function<std::string()> answer) noexcept
    : answer_(std::move(answer)), process_(::getpid()) {
  // The thread inherits a mask of all signals, so that they go to the program's own threads.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    stops_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (stops_ >= 0) listens_ = listen_at(socket_name(address));
    if (listens_ >= 0) thread_ = std::make_unique<std::thread>([this] { serve(); });
  } catch (const std::exception&) {
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

StatusServer::~StatusServer() {
  if (::getpid() == process_ && thread_) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stops_, &one, sizeof one);
    thread_->join();
  } else {
    static_cast<void>(thread_.release());  // of the parent
  }
  for (const int fd : {listens_, stops_}) {
    if (fd >= 0) ::close(fd);
  }
}

bool StatusServer::wait_for(int fd, short event, int timeout_ms) const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (timeout_ms >= 0 && left < 0) return false;
    pollfd fds[] = {{stops_, POLLIN, 0}, {fd, event, 0}};
    const int n = ::poll(fds, 2, timeout_ms < 0 ? -1 : static_cast<int>(left));
    if (n < 0 && errno == EINTR) continue;
    return n > 0 && fds[0].revents == 0;
  }
}

void StatusServer::serve() {
  while (wait_for(listens_, POLLIN, -1)) {
    const int client = ::accept4(listens_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) {
      pollfd stop = {stops_, POLLIN, 0};
      ::poll(&stop, 1, kPause_ms);  // no file descriptor to be had, perhaps
      continue;
    }
    if (is_same_user(client)) send_answer(client);
    ::close(client);
  }
}

void StatusServer::send_answer(int to) {
  try {
    const std::string text = answer_();
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kSend_ms);
    for (size_t sent = 0; sent < text.size();) {
      const ssize_t n = ::send(to, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (n > 0) sent += static_cast<size_t>(n);
      if (n < 0 && errno != EAGAIN && errno != EINTR) return;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
      if (sent < text.size() && (left <= 0 || !wait_for(to, POLLOUT, static_cast<int>(left)))) return;
    }
  } catch (const std::exception&) {  // not reported, as after any other end
  }
}

}  // namespace dtensor::internal
