// Signals between the processes of a test that bypass the library.
#pragma once

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

namespace dtensor {

class RankFlag {
 public:
  explicit RankFlag(const std::string& name) : path_(std::filesystem::path(std::getenv("TEST_TMPDIR")) / name) {}
  void raise() { std::ofstream(path_) << "1"; }
  bool wait(std::chrono::seconds most) const {
    for (const auto end = std::chrono::steady_clock::now() + most; std::chrono::steady_clock::now() < end;) {
      if (std::filesystem::exists(path_)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    return false;
  }

 private:
  std::filesystem::path path_;
};

}  // namespace dtensor
