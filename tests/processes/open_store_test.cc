#include "processes/launch/open_store.h"

#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/strings/str_cat.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/time_limits.h"

using Catch::Contains;
using std::chrono::milliseconds;

namespace dtensor {
using namespace internal;

namespace {

struct Folder {
  Folder() {
    const char* base = std::getenv("TEST_TMPDIR");
    path = std::string(base != nullptr ? base : "/tmp") + "/open_store_XXXXXX";
    REQUIRE(::mkdtemp(path.data()) != nullptr);
  }
  ~Folder() { REQUIRE(std::system(("rm -rf '" + path + "'").c_str()) == 0); }
  std::string path;
};

JobPlace place(std::string store, int64_t rank = 0, int64_t size = 2) {
  JobPlace p;
  p.rank = rank;
  p.world_size = size;
  p.store = std::move(store);
  p.store_source = "the test";
  p.timeout = std::chrono::seconds(20);
  return p;
}

struct Outcome {
  std::string error;
  milliseconds took{0};
};
Outcome outcome(JobPlace p) {
  p.timeout = milliseconds(700);
  const auto begin = std::chrono::steady_clock::now();
  Outcome o;
  try {
    open_store(p);
  } catch (const c10::Error& e) {
    o.error = e.what_without_backtrace();
  }
  o.took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - begin);
  return o;
}

// A socket at 127.0.0.1, and its port, without answers.
struct Socket {
  explicit Socket(bool listens) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    REQUIRE(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0);
    if (listens) REQUIRE(::listen(fd, 8) == 0);
    REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
    port = ntohs(address.sin_port);
  }
  ~Socket() { ::close(fd); }
  int fd, port;
};

int free_port() { return Socket(false).port; }

// The addresses at which this host listens on `port`, as /proc shows them.
std::vector<std::string> listening(int port) {
  std::vector<std::string> addresses;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream in(file);
    std::string line, number, local, remote, state;
    std::getline(in, line);
    while (std::getline(in, line)) {
      std::istringstream(line) >> number >> local >> remote >> state;
      if (state == "0A" && std::stoi(local.substr(local.find(':') + 1), nullptr, 16) == port) {
        addresses.push_back(local.substr(0, local.find(':')));
      }
    }
  }
  return addresses;
}

TEST_CASE("open_store: a file") {
  Folder folder;
  const std::string url = "file://" + folder.path + "/store";
  const auto a = open_store(place(url, 0)), b = open_store(place(url, 1));
  a->set("key", std::string("value"));
  CHECK(b->get_to_str("key") == "value");
  CHECK(a->getTimeout() == std::chrono::seconds(20));
  struct stat info = {};
  REQUIRE(::stat((folder.path + "/store").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0600);
  CHECK_THAT(outcome(place("file://" + folder.path + "/no/store")).error,
             Contains("/no/store (from the test) cannot be opened: No such file or directory. Its folder must exist"));
  CHECK_THAT(outcome(place("file://" + folder.path)).error, Contains("cannot be opened: Is a directory"));
}

TEST_CASE("open_store: a file that is not a store is not changed") {
  Folder folder;
  const std::string path = folder.path + "/file";
  const auto with = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    const Outcome o = outcome(place("file://" + path));
    std::ifstream in(path, std::ios::binary);
    CHECK(std::string(std::istreambuf_iterator<char>(in), {}) == content);
    CHECK(o.took < testing::kAtOnce);
    return o.error;
  };
  const auto no_store = Contains("/file (from the test) is no store: the file holds something else. Choose a path");
  CHECK_THAT(with("a diary"), no_store);
  CHECK_THAT(with(std::string("\xff\xff\xff\x7f", 4) + "x"), no_store);     // a length beyond the end
  CHECK_THAT(with(std::string("\1\0\0\0k", 5)), no_store);                  // a key without a value
  CHECK_THAT(with(std::string("\1\0\0\0k\1\0\0\0v", 10) + "x"), no_store);  // something behind a record
  CHECK_THAT(with(std::string(3, '\0')), no_store);
  ::unlink(path.c_str());
  std::ofstream(path, std::ios::binary).flush();  // empty, as mktemp makes it
  open_store(place("file://" + path))->set("key", std::string("value"));

  // A writer holds the lock for a moment; if it keeps the lock, the wait ends with the deadline.
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  REQUIRE(::flock(fd, LOCK_EX) == 0);
  const Outcome locked = outcome(place("file://" + path));
  CHECK_THAT(locked.error, Contains("cannot be locked within 0.7 s"));
  CHECK(locked.took >= milliseconds(700));
  CHECK(locked.took < testing::kAtOnce);
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(200));
    ::close(fd);
  });
  CHECK_NOTHROW(open_store(place("file://" + path)));
  later.join();
}

TEST_CASE("open_store: a derived file is in a folder of this user alone") {
  Folder folder;
  JobPlace p = place("file://" + folder.path + "/own/store");
  p.store_derived = true;
  open_store(p);
  struct stat info = {};
  REQUIRE(::stat((folder.path + "/own").c_str(), &info) == 0);
  CHECK((info.st_mode & 0777) == 0700);
  CHECK(info.st_uid == ::geteuid());
  CHECK_NOTHROW(open_store(p));  // the folder may be there
  REQUIRE(::chmod((folder.path + "/own").c_str(), 0770) == 0);
  CHECK_THAT(outcome(p).error, Contains("is not this user's alone") && Contains("set TMPDIR"));
  REQUIRE(::chmod((folder.path + "/own").c_str(), 0700) == 0);
  REQUIRE(::symlink((folder.path + "/own").c_str(), (folder.path + "/link").c_str()) == 0);
  p.store = "file://" + folder.path + "/link/store";
  CHECK_THAT(outcome(p).error, Contains("is not this user's alone"));
  p.store = "file://" + folder.path + "/a/b/store";
  CHECK_THAT(outcome(p).error, Contains("cannot make the folder " + folder.path + "/a/b"));
  if (::geteuid() == 0) {  // else the owner of a folder cannot be changed
    REQUIRE(::chown((folder.path + "/own").c_str(), 65534, 65534) == 0);
    p.store = "file://" + folder.path + "/own/store";
    CHECK_THAT(outcome(p).error, Contains("is not this user's alone"));
  }
}

TEST_CASE("open_store: rank 0 serves at its address alone") {
  const int port = free_port();
  const std::string url = absl::StrCat("tcp://127.0.0.1:", port);
  c10::intrusive_ptr<c10d::Store> b;
  std::thread early([&] {  // waits for rank 0
    b = open_store(place(url, 1));
  });
  std::this_thread::sleep_for(milliseconds(200));
  const auto a = open_store(place(url, 0));
  early.join();
  a->set("key", std::string("value"));
  CHECK(b->get_to_str("key") == "value");
  CHECK(listening(port) == std::vector<std::string>{"0100007F"});
  CHECK(open_store(place(url, 0)).get() == a.get());  // a second world of this process
}

TEST_CASE("open_store: the launcher's agent serves") {
  const int port = free_port();
  JobPlace agent = place(absl::StrCat("tcp://127.0.0.1:", port), 0);
  const auto served = open_store(agent);
  agent.store_exists = true;
  const auto rank0 = open_store(agent);
  CHECK(rank0.get() != served.get());
  served->set("key", std::string("value"));
  CHECK(rank0->get_to_str("key") == "value");

  JobPlace unserved = place(absl::StrCat("tcp://127.0.0.1:", free_port()), 0);
  unserved.store_exists = true;
  CHECK_THAT(outcome(unserved).error,
             Contains("no answer to rank 0 at") && Contains("The launcher's agent listens there"));
}

TEST_CASE("open_store: the error of an address that cannot be served names the remedy") {
  Socket other(true);
  CHECK_THAT(
      outcome(place(absl::StrCat("tcp://127.0.0.1:", other.port))).error,
      Contains(absl::StrCat("the store tcp://127.0.0.1:", other.port, " (from the test): rank 0 cannot listen there: ",
                            "Address already in use. Another program, or another job, listens there")) &&
          Contains("MASTER_PORT"));
  CHECK_THAT(outcome(place("tcp://198.51.100.1:29500")).error,
             Contains("Rank 0 runs on another host") && Contains("MASTER_ADDR"));
  JobPlace hosts = place(absl::StrCat("tcp://localhost:", free_port()), 0, 4);
  hosts.local_world_size = 2;
  CHECK_THAT(outcome(hosts).error,
             Contains("the loopback address") && Contains("the ranks on other hosts cannot reach"));
}

TEST_CASE("open_store: a failed connection is an error within the timeout") {
  const Outcome refused = outcome(place(absl::StrCat("tcp://127.0.0.1:", free_port()), 1));
  CHECK_THAT(refused.error, Contains("no answer to rank 1 at the store tcp://127.0.0.1:") &&
                                Contains("within 0.7 s: Connection refused. Rank 0 listens there"));
  CHECK(refused.took >= milliseconds(700));
  CHECK(refused.took < testing::kAtOnce);

  Socket silent(true);  // accepts, and never says a word
  const Outcome mute = outcome(place(absl::StrCat("tcp://127.0.0.1:", silent.port), 1));
  CHECK_THAT(mute.error, Contains("found something at the store") && Contains("does not answer as a store does"));
  CHECK(mute.took < testing::kAtOnce);

  // A name of RFC 2606 that never exists.
  const Outcome unknown = outcome(place("tcp://nowhere.invalid:29500", 1));
  CHECK_THAT(unknown.error, Contains("there is no host 'nowhere.invalid'"));
}

}  // namespace
}  // namespace dtensor
