// A test program that starts itself again, for what ends a process or is read from the environment once.
//
//   TEST_CASE("child: dies", "[.child]") { ... }          // hidden: runs only when it is asked for
//   Child child("child: dies", {{"DTENSOR_TRACE", path}});
//   CHECK(WTERMSIG(child.wait()) == SIGABRT);
#pragma once

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace dtensor::testing {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// An empty folder, removed with this object.
class TempFolder {
 public:
  TempFolder() {
    const char* base = std::getenv("TEST_TMPDIR");
    path_ = std::string(base != nullptr ? base : "/tmp") + "/dtensor_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) path_ = ".";
  }
  ~TempFolder() {
    // Not std::filesystem::remove_all: libtorch_cpu exports a part of another libstdc++'s, which crashes on folders in
    // folders.
    const auto remove = [](const char* path, const struct stat*, int, struct FTW*) { return ::remove(path); };
    if (path_ != ".") ::nftw(path_.c_str(), remove, 8, FTW_DEPTH | FTW_PHYS);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Polls until the condition holds, no longer than half a minute.
inline bool eventually(const std::function<bool()>& so) {
  for (int i = 0; i < 3000; ++i) {
    if (so()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

class Child {
 public:
  // Runs one test case. Its output goes into a file.
  Child(const std::string& test_case, std::vector<std::pair<std::string, std::string>> variables) {
    const std::string output = folder_ / "output";
    pid_ = ::fork();
    if (pid_ != 0) return;
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    const int fd = ::open(output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::dup2(fd, 1);
    ::dup2(fd, 2);
    ::execl("/proc/self/exe", "child", test_case.c_str(), nullptr);
    ::_exit(127);
  }
  ~Child() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    wait();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  // The status of waitpid(). A child that takes too long is killed.
  int wait() {
    int status = 0;
    if (!eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; })) {
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status, 0);
    }
    pid_ = -1;
    return status;
  }
  // With a single space for all white space: Catch2 breaks its output into lines.
  std::string output() const {
    std::istringstream words(read_file(folder_ / "output"));
    std::string text;
    for (std::string word; words >> word;) text += (text.empty() ? "" : " ") + word;
    return text;
  }

 private:
  TempFolder folder_;
  pid_t pid_ = -1;
};

}  // namespace dtensor::testing
