#include "observe/dump_signals.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

namespace dtensor::internal {
namespace {

// The handler writes the signal's number to this pipe, and a thread reads it. Both ends stay open for good.
std::atomic<int> signal_pipe{-1};
std::atomic<int64_t> armed_process{0};

extern "C" void dtensor_on_dump_signal(int signal) {
  const int saved = errno;
  const auto byte = static_cast<unsigned char>(signal);
  // A fork's child has no thread that reads, and the pipe is the parent's.
  const bool is_sent = armed_process.load() == ::getpid() && ::write(signal_pipe.load(), &byte, 1) == 1;
  if (!is_sent && signal == SIGTERM) ::raise(SIGTERM);  // by SA_RESETHAND the default action, once this handler is left
  errno = saved;
}

void serve(int fd, void (*dump)()) {
  for (;;) {
    unsigned char signal = 0;
    const ssize_t n = ::read(fd, &signal, 1);
    if (n < 0 && errno == EINTR) continue;
    if (n != 1) return;
    dump();
    if (signal != SIGTERM) continue;
    ::signal(SIGTERM, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, SIGTERM);
    ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    ::raise(SIGTERM);
  }
}

void install(int signal, int flags) {
  struct sigaction current = {};
  if (::sigaction(signal, nullptr, &current) != 0) return;
  const bool ours = current.sa_handler == dtensor_on_dump_signal;  // installed before a fork
  if (!ours && ((current.sa_flags & SA_SIGINFO) != 0 || current.sa_handler != SIG_DFL)) return;
  struct sigaction action = {};
  action.sa_handler = dtensor_on_dump_signal;
  action.sa_flags = SA_RESTART | flags;
  sigemptyset(&action.sa_mask);
  ::sigaction(signal, &action, nullptr);
}

}  // namespace

void dump_on_signals(void (*dump)()) noexcept {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (armed_process.load() == ::getpid()) return;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  ::fcntl(ends[1], F_SETFL, O_NONBLOCK);
  // The thread inherits a mask of all signals, so that they go to the program's own threads, as they would without it.
  sigset_t all, before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    std::thread([fd = ends[0], dump] { serve(fd, dump); }).detach();
    signal_pipe.store(ends[1]);
    armed_process.store(::getpid());
    install(SIGUSR1, 0);
    install(SIGTERM, SA_RESETHAND);
  } catch (const std::exception&) {  // the thread could not be started
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace dtensor::internal
