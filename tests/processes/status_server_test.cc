// Clients of a rank's status server, which must not be held up by any of them.
#include "processes/job/status_server.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>

#include "processes/job/host_process.h"
#include "processes/job/rank_address.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/time_limits.h"

namespace dtensor {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

const RankAddress& address() {
  static const RankAddress own{"test" + std::to_string(::getpid()), 1, 4, ::getpid(), process_start(::getpid())};
  return own;
}

// A connection, or -1.
int connect_to(const RankAddress& to) {
  const std::string name = socket_name(to);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&address), size) == 0) return fd;
  ::close(fd);
  return -1;
}

// What comes until the end of the stream; "no answer" if that takes 10 s.
std::string read_all(int fd) {
  std::string text;
  for (char buffer[4096];;) {
    pollfd ready = {fd, POLLIN, 0};
    if (::poll(&ready, 1, 10000) != 1) return "no answer";
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  ::close(fd);
  return text;
}

TEST_CASE("status server: names of sockets identify the rank, and other names are rejected", "[processes][status]") {
  const auto parsed = parse_socket_name(socket_name({"4f2a", 3, 8, 1234, "567"}));
  REQUIRE(parsed);
  CHECK(parsed->job == "4f2a");
  CHECK(parsed->rank == 3);
  CHECK(parsed->size == 8);
  CHECK(parsed->pid == 1234);
  CHECK(parsed->start == "567");
  for (const char* other :
       {"", "dtensor-job", "dtensor-job/a/1/2", "dtensor-job/a/0/2/7", "dtensor-job/a/2/2/7/5", "dtensor-job//0/2/7/5",
        "dtensor-job/a/-1/2/7/5", "dtensor-job/a/0/2/7/8/5", "dtensor-job/a/x/2/7/5", "x/a/0/2/7/5"}) {
    CAPTURE(other);
    CHECK_FALSE(parse_socket_name(other));
  }
}

TEST_CASE("status server: every client gets the whole answer", "[processes][status]") {
  std::atomic<int> asked{0};
  const std::string long_text(3 << 20, 'x');
  const StatusServer server(address(), [&] { return std::to_string(++asked) + long_text; });
  CHECK(read_all(connect_to(address())) == "1" + long_text);
  CHECK(read_all(connect_to(address())) == "2" + long_text);
}

TEST_CASE("status server: an exception of the answer does not end the program", "[processes][status]") {
  bool first = true;
  const StatusServer server(address(), [&]() -> std::string {
    if (std::exchange(first, false)) throw std::runtime_error("no answer");
    return "well";
  });
  CHECK(read_all(connect_to(address())).empty());
  CHECK(read_all(connect_to(address())) == "well");
}

TEST_CASE("status server: a client that does not read holds up neither its end nor the name", "[processes][status]") {
  int idle = -1;
  const auto begin = Clock::now();
  {
    const StatusServer server(address(), [] { return std::string(8 << 20, 'x'); });
    idle = connect_to(address());
    REQUIRE(idle >= 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
  CHECK(Clock::now() - begin < testing::kAtOnce);
  CHECK(connect_to(address()) < 0);
  ::close(idle);
  const StatusServer again(address(), [] { return std::string("again"); });
  CHECK(read_all(connect_to(address())) == "again");
}

TEST_CASE("status server: a client that does not read holds up others for a second only", "[processes][status]") {
  const StatusServer server(address(), [] { return std::string(8 << 20, 'x'); });
  const int idle = connect_to(address());
  REQUIRE(idle >= 0);
  const auto begin = Clock::now();
  CHECK(read_all(connect_to(address())).size() == 8 << 20);
  CHECK(Clock::now() - begin < std::chrono::milliseconds(5000));
  ::close(idle);
}

// Runs `body` in a fork's child; its exit code, or -1 if it does not end within 10 s.
template <typename Body>
int code_of_child(Body body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  for (int i = 0; i < 1000; ++i) {
    if (::waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &status, 0);
  return -1;
}

TEST_CASE("status server: another user gets nothing", "[processes][status]") {
  if (::geteuid() != 0) {
    WARN("SKIPPED: only root can be another user");
    return;
  }
  const StatusServer server(address(), [] { return std::string("a secret"); });
  CHECK(code_of_child([] {
          if (::setresuid(65534, 65534, 65534) != 0) return 3;
          const int fd = connect_to(address());
          if (fd < 0) return 5;
          return read_all(fd).empty() ? 0 : 4;
        }) == 0);
  CHECK(code_of_child([] { return read_all(connect_to(address())) == "a secret" ? 0 : 4; }) == 0);
}

TEST_CASE("status server: destroying it in a forked child does not affect the parent's", "[processes][status]") {
  auto server = std::make_unique<StatusServer>(address(), [] { return std::string("parent"); });
  CHECK(code_of_child([&] {
          server.reset();
          return 0;
        }) == 0);
  CHECK(read_all(connect_to(address())) == "parent");
}

}  // namespace
}  // namespace dtensor
