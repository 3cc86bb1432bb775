// Thousands of damaged files of each kind: every one is an error with the path, or loads; within little memory and
// time.
#include <sys/resource.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <random>

#include "absl/strings/escaping.h"
#include "checkpoint/serialize.h"
#include "tests/checkpoint/python_files.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
namespace {

using testing::Child;
using testing::read_file;
using testing::TempFolder;

// Some bytes changed, cut out, doubled, or taken from another file.
std::string mutated(std::string s, const std::string& other, std::mt19937& random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : random() % n; };
  for (size_t n = 1 + below(4); n-- > 0 && !s.empty();) {
    const size_t at = below(s.size()), length = 1 + below(std::min<size_t>(64, s.size() - at));
    switch (below(7)) {
      case 0:
        s[at] = static_cast<char>(random());
        break;
      case 1:
        s[at] = static_cast<char>(s[at] ^ (1 << below(8)));
        break;
      case 2:
        s.resize(at);
        break;
      case 3:
        s.erase(at, length);
        break;
      case 4:
        s.insert(at, s.substr(at, length));
        break;
      case 5:
        s.replace(at, length, other.substr(below(other.size()), length));
        break;
      default:
        s.replace(at, std::min<size_t>(8, s.size() - at), std::min<size_t>(8, s.size() - at), '\xff');
        break;
    }
  }
  return s;
}

}  // namespace

TEST_CASE("child: mutations", "[.child]") {
  const TempFolder folder;
  torch::nn::Linear model(2, 1);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.1));
  model(torch::ones({1, 2})).sum().backward();
  optimizer.step();
  const std::string path = folder / "f.pt";
  std::vector<std::string> files;
  const auto add = [&](const auto& write) {
    write();
    files.push_back(read_file(path));
  };
  add([&] { save(torch::ones({3}), path); });
  add([&] { save(NamedTensors{{"weight", torch::ones({1, 2})}, {"bias", torch::ones({1}, torch::kUInt16)}}, path); });
  add([&] { save(*model, path); });
  add([&] { save(optimizer, path); });
  for (const char* base64 : {kStateDict, kCheckpoint}) {
    files.emplace_back();
    REQUIRE(absl::Base64Unescape(base64, &files.back()));
  }
  // As much as the process has now, and 1 GiB.
  std::ifstream statm("/proc/self/statm");
  rlim_t pages = 0;
  statm >> pages;
  const rlim_t bytes = pages * 4096 + (rlim_t{1} << 30);
  const rlimit limit{bytes, bytes};
  REQUIRE(::setrlimit(RLIMIT_AS, &limit) == 0);
  std::mt19937 random(7);
  int good = 0, bad = 0;
  const auto try_out = [&](const auto& load_it) {
    try {
      load_it();
      ++good;
    } catch (const c10::Error& e) {
      const std::string text = e.what_without_backtrace();
      if (text.find(path) == std::string::npos) std::printf("no path: %s\n", text.c_str());
      ++bad;
    }
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string& original = files[i % files.size()];
    std::ofstream(path, std::ios::binary) << mutated(original, files[random() % files.size()], random);
    try_out([&] {
      for (const auto& [name, t] : load_tensors(path)) {
        if (t.numel() < 1'000'000) t.to(torch::kDouble).abs().sum().item<double>();  // reads all of it
      }
    });
    try_out([&] { load(*model, path); });
    try_out([&] { load(optimizer, path); });
  }
  std::printf("%d good, %d bad: every file was tried\n", good, bad);
}

TEST_CASE("damaged_files: damaged files are errors, or load; within little memory and time") {
  Child child("child: mutations", {});
  CHECK(child.wait() == 0);
  const std::string output = child.output();
  CHECK_THAT(output, Catch::Contains("every file was tried") && !Catch::Contains("no path:"));
}

}  // namespace dtensor
