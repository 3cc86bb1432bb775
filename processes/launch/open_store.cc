#include "processes/launch/open_store.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/error_message.h"
#include "processes/launch/launch_store.h"
#include "processes/launch/launch_variables.h"

namespace dtensor::internal {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kRetry{50};

std::string in_seconds(Milliseconds t) { return absl::StrCat(static_cast<double>(t.count()) / 1000, " s"); }
std::string errno_text(int error) { return std::strerror(error); }

// "the store tcp://10.0.0.7:29500 (from MASTER_ADDR and MASTER_PORT)"
std::string name_of(const JobPlace& place) {
  return absl::StrCat("the store ", place.store, " (from ", place.store_source, ")");
}

// True for a file that FileStore wrote, or an empty one: records of a key and a value, each behind its length.
// FileStore itself would read anything else without end, or write behind it.
// REQUIRES: the file is locked, as others may be writing to it.
bool holds_records(int fd) {
  struct stat info = {};
  if (::fstat(fd, &info) != 0) return false;
  off_t at = 0;
  while (at < info.st_size) {
    for (int part = 0; part < 2; ++part) {
      uint32_t length = 0;
      if (::pread(fd, &length, sizeof length, at) != static_cast<ssize_t>(sizeof length)) return false;
      at += static_cast<off_t>(sizeof length) + length;
      if (at > info.st_size) return false;
    }
  }
  return true;
}

c10::intrusive_ptr<c10d::Store> open_file(const JobPlace& place, const std::string& path) {
  if (place.store_derived) {
    const std::string folder = path.substr(0, path.rfind('/'));
    const bool made = ::mkdir(folder.c_str(), 0700) == 0;
    TORCH_CHECK(made || errno == EEXIST, kFromEnv, "cannot make the folder ", folder,
                " for the file at which the ranks meet: ", errno_text(errno),
                ". Set TMPDIR to a folder that can be written to");
    struct stat info = {};
    const bool seen = ::lstat(folder.c_str(), &info) == 0;
    TORCH_CHECK(
        seen && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 077) == 0, kFromEnv,
        "the folder ", folder,
        " for the file at which the ranks meet is not this user's alone: another user could write there. Remove "
        "it, or set TMPDIR to another folder");
  }
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  TORCH_CHECK(fd >= 0, kFromEnv, name_of(place), " cannot be opened: ", errno_text(errno),
              ". Its folder must exist, on a file system that all ranks share, and be writable");
  const auto deadline = Clock::now() + place.timeout;
  int error = 0;
  while (::flock(fd, LOCK_SH | LOCK_NB) != 0) {
    error = errno;
    if ((error != EWOULDBLOCK && error != EINTR) || Clock::now() >= deadline) break;
    error = 0;
    std::this_thread::sleep_for(Milliseconds(1));
  }
  const bool good = error == 0 && holds_records(fd);
  ::close(fd);  // and unlock
  TORCH_CHECK(error == 0, kFromEnv, name_of(place), " cannot be locked within ", in_seconds(place.timeout), ": ",
              errno_text(error), ". Its file system must have locks (flock), and no other program may hold this one");
  TORCH_CHECK(good, kFromEnv, name_of(place),
              " is no store: the file holds something else. Choose a path at which nothing is");
  return c10::make_intrusive<c10d::FileStore>(path, static_cast<int>(place.world_size));
}

// A result of getaddrinfo.
struct Address {
  sockaddr_storage socket = {};
  socklen_t size = 0;
  int family = 0;

  std::string host() const {
    char text[NI_MAXHOST] = {};
    ::getnameinfo(reinterpret_cast<const sockaddr*>(&socket), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return text;
  }
  bool is_loopback() const {
    if (family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(socket).sin6_addr);
    return ntohl(reinterpret_cast<const sockaddr_in&>(socket).sin_addr.s_addr) >> 24 == 127;
  }
};

std::vector<Address> resolve(const JobPlace& place, const StoreAddress& where, Clock::time_point deadline) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  int error = 0;
  do {
    error = ::getaddrinfo(where.host.c_str(), std::to_string(where.port).c_str(), &hints, &found);
  } while (error == EAI_AGAIN && Clock::now() < deadline && (std::this_thread::sleep_for(kRetry), true));
  TORCH_CHECK(error == 0, kFromEnv, name_of(place), ": there is no host '", where.host, "' (", ::gai_strerror(error),
              "). It must be a name or an address of the host on which rank 0 runs");
  std::vector<Address> addresses;
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    Address address;
    std::memcpy(&address.socket, a->ai_addr, a->ai_addrlen);
    address.size = a->ai_addrlen;
    address.family = a->ai_family;
    addresses.push_back(address);
  }
  ::freeaddrinfo(found);
  return addresses;
}

struct Listening {
  int fd = -1;
  std::string host;
};

// On that address alone: TCPStore itself would listen on all of the host's.
Listening listen_at(const JobPlace& place, const std::vector<Address>& addresses) {
  int error = EADDRNOTAVAIL;
  for (const Address& address : addresses) {
    TORCH_CHECK(
        !address.is_loopback() || place.local_world_size < 0 || place.local_world_size == place.world_size, kFromEnv,
        name_of(place), ": on rank 0's host that is the loopback address ", address.host(),
        ", which the ranks on other hosts cannot reach. Set MASTER_ADDR to an address of rank 0's host in the network");
    const int fd = ::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    const int one = 1;  // a port whose last connections are still fading counts as free
    ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (::bind(fd, reinterpret_cast<const sockaddr*>(&address.socket), address.size) == 0 &&
        ::listen(fd, SOMAXCONN) == 0) {
      return {fd, address.host()};
    }
    error = errno;
    ::close(fd);
  }
  std::string advice = "Choose another address or port";
  if (error == EADDRINUSE)
    advice = "Another program, or another job, listens there: end it, or choose another port (MASTER_PORT)";
  if (error == EADDRNOTAVAIL)
    advice = "Rank 0 runs on another host: the address (MASTER_ADDR) must be one of rank 0's host";
  if (error == EACCES) advice = "Choose a port (MASTER_PORT) above 1023";
  TORCH_CHECK(false, kFromEnv, name_of(place), ": rank 0 cannot listen there: ", errno_text(error), ". ", advice);
}

// 0, or errno of one attempt.
int try_to_connect(const Address& address, Milliseconds limit) {
  const int fd = ::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return errno;
  int error = ::connect(fd, reinterpret_cast<const sockaddr*>(&address.socket), address.size) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready = {fd, POLLOUT, 0};
    socklen_t size = sizeof error;
    if (::poll(&ready, 1, static_cast<int>(limit.count())) != 1) {
      error = ETIMEDOUT;
    } else if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  ::close(fd);
  return error;
}

// The address that has a listener. TCPStore would wait for one, too, but not end in time, nor with a helpful text.
std::string find_listener(const JobPlace& place, const std::vector<Address>& addresses, Clock::time_point deadline) {
  int error = ETIMEDOUT;
  do {
    for (const Address& address : addresses) {
      const auto left = std::chrono::duration_cast<Milliseconds>(deadline - Clock::now());
      error = try_to_connect(address, std::clamp(left, Milliseconds(1), Milliseconds(2000)));
      if (error == 0) return address.host();
    }
    std::this_thread::sleep_for(kRetry);
  } while (Clock::now() < deadline);
  TORCH_CHECK(false, kFromEnv, "no answer to rank ", place.rank, " at ", name_of(place), " within ",
              in_seconds(place.timeout), ": ", errno_text(error), ". ",
              place.store_exists ? "The launcher's agent" : "Rank 0", " listens there: see that it runs, that ",
              "all ranks have the same address, and that no firewall is between");
}

// TCPStore waits for the other side's first words without any limit, so it does so in a thread that can be left behind.
c10::intrusive_ptr<c10d::Store> connect(const std::string& host, c10d::TCPStoreOptions options,
                                        Clock::time_point deadline) {
  const auto left = std::max(std::chrono::duration_cast<Milliseconds>(deadline - Clock::now()), Milliseconds(100));
  options.timeout = left;
  std::promise<c10::intrusive_ptr<c10d::Store>> promise;
  auto made = promise.get_future();
  std::thread([host, options, promise = std::move(promise)]() mutable {
    try {
      promise.set_value(c10::make_intrusive<c10d::TCPStore>(host, options));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }).detach();
  TORCH_CHECK(made.wait_for(left) == std::future_status::ready, "no answer in ", in_seconds(left));
  return made.get();
}

c10::intrusive_ptr<c10d::Store> open_tcp(const JobPlace& place, const StoreAddress& where) {
  const auto deadline = Clock::now() + place.timeout;
  const bool serve = place.rank == 0 && !place.store_exists;
  // A process may make several worlds, and another rank may request the second before rank 0 has left the first: rank 0
  // serves its stores until it ends.
  static auto* served = new std::map<std::string, c10::intrusive_ptr<c10d::Store>>;
  static auto* mutex = new std::mutex;
  std::unique_lock lock(*mutex, std::defer_lock);
  if (serve) {
    lock.lock();
    if (const auto it = served->find(place.store); it != served->end()) return it->second;
  }
  const auto addresses = resolve(place, where, deadline);
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(where.port);
  options.waitWorkers = false;
  std::string host;
  if (serve) {
    const Listening listening = listen_at(place, addresses);
    host = listening.host;
    options.isServer = true;
    options.masterListenFd = listening.fd;
  } else {
    host = find_listener(place, addresses, deadline);
  }
  try {
    auto store = connect(host, options, deadline);
    if (serve) served->emplace(place.store, store);
    return store;
  } catch (const std::exception& e) {
    const std::string reason = first_line(message_of(e));
    C10_THROW_ERROR(DistStoreError,
                    absl::StrCat(kFromEnv, "rank ", place.rank, " found something at ", name_of(place),
                                 " that does not answer as a store does: ", reason,
                                 ". If another program listens there, choose another port (MASTER_PORT)"));
  }
}

}  // namespace

c10::intrusive_ptr<c10d::Store> open_store(const JobPlace& place) {
  const StoreAddress where = parse_store(place.store, absl::StrCat(kFromEnv, place.store_source));
  auto store = where.path.empty() ? open_tcp(place, where) : open_file(place, where.path);
  store->setTimeout(place.timeout);
  return store;
}

}  // namespace dtensor::internal
