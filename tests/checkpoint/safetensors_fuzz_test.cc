// Damaged files, thousands of them, in a child with little memory: each is refused with a c10::Error, or what is loaded
// lies in the file and reads as the header says.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <random>

#include "checkpoint/hugging_face.h"
#include "tests/checkpoint/safetensors_files.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
namespace {

using testing::Child;
using testing::read_file;
using testing::TempFolder;
using testing::write_file;
using Random = std::mt19937_64;

size_t below(Random& random, size_t n) { return n == 0 ? 0 : random() % n; }

// Fragments that parsers handle badly.
const std::vector<std::string> kPieces{"{",
                                       "}",
                                       "[",
                                       "]",
                                       ",",
                                       ":",
                                       "\"",
                                       "\\",
                                       "0",
                                       "1",
                                       "-1",
                                       "1e9",
                                       "0.0",
                                       "null",
                                       "true",
                                       "[[",
                                       "{}",
                                       "4294967296",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "18446744073709551615",
                                       "18446744073709551616",
                                       "1e400",
                                       "\"dtype\":\"F4\",",
                                       "\"shape\":[0],",
                                       "\"data_offsets\":[0,8],",
                                       "\"__metadata__\":{},",
                                       "\"a\":{},",
                                       "\"BOOL\"",
                                       "\"F64\"",
                                       "\"U8\"",
                                       "\\u0000",
                                       "\\ud800",
                                       "\xff",
                                       std::string(1, '\0')};

// Some bytes are changed, moved, doubled, left out, or replaced by a piece; the first 8, a length, more often than
// others.
std::string mutated(std::string bytes, Random& random) {
  for (size_t n = 1 + below(random, 4); n > 0; --n) {
    const size_t at = below(random, bytes.size()), some = 1 + below(random, 12);
    switch (below(random, 9)) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<char>(1 << below(random, 8));
        break;
      case 1:
        if (bytes.size() >= 8) bytes[below(random, 8)] = static_cast<char>(random());
        break;
      case 2:
        bytes.resize(at);
        break;
      case 3:
        bytes.append(some, static_cast<char>(random()));
        break;
      case 4:
        if (!bytes.empty()) bytes.erase(at, some);
        break;
      case 5:
        if (!bytes.empty()) bytes.insert(below(random, bytes.size()), bytes.substr(at, 5 * some));
        break;
      default:
        if (!bytes.empty()) bytes.replace(at, below(random, 3) * some / 3, kPieces[below(random, kPieces.size())]);
    }
  }
  return bytes;
}

// As `bytes`, with the length of the header that it has: mutations within the header meet the parser then.
std::string with_right_length(const std::string& bytes, size_t data) {
  if (bytes.size() < 8 + data) return bytes;
  return testing::safetensors_bytes(bytes.substr(8, bytes.size() - 8 - data), bytes.substr(bytes.size() - data));
}

// Whether it could be loaded. Every byte is read, so that one outside of the file would be noticed.
bool loads(const std::string& path) try {
  const HuggingFaceFolder weights(path);
  size_t in_files = 0, in_tensors = 0;
  for (const SafetensorsFile& f : weights.files()) {
    in_files += read_file(f.path()).size() - static_cast<size_t>(f.header().data_begin);
  }
  for (const auto& [name, t] : weights.tensors()) in_tensors += t.clone().nbytes();
  REQUIRE(in_tensors == in_files);
  return true;
} catch (const c10::Error& e) {
  const std::string text = e.what_without_backtrace();
  CAPTURE(text);
  REQUIRE(text.find(path.substr(0, path.rfind('/'))) != text.npos);
  REQUIRE(text.size() < 2000);
  return false;
}

void limit_memory(size_t bytes) {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t limit = pages * 4096 + bytes;
  const struct rlimit limits = {limit, limit};
  REQUIRE(::setrlimit(RLIMIT_AS, &limits) == 0);
}

NamedTensors some_tensors() {
  return {{"a", at::arange(2, at::kFloat)},
          {"mask", at::ones({3, 1}, at::kBool)},
          {"none", at::ones({0})},
          {"scalar", at::ones({}, at::kDouble)}};
}

// Prints how many could be loaded.
void mutate(const std::string& path, const std::string& file, size_t data, int64_t rounds) {
  const std::string sound = read_file(file);
  Random random(20251122);
  int64_t loaded = 0;
  REQUIRE(loads(path));
  for (int64_t i = 0; i < rounds; ++i) {
    std::string bytes = mutated(sound, random);
    if (data > 0 && i % 2 == 0) bytes = with_right_length(bytes, data);
    ::unlink(file.c_str());  // some file systems wait for the disk when a file is shortened and rewritten
    write_file(file, bytes);
    loaded += loads(path);
  }
  std::printf("loaded %lld of %lld\n", static_cast<long long>(loaded), static_cast<long long>(rounds));
}

// That the child found its files refused or right, some of each.
void check_child(const char* name) {
  Child child(name, {});
  const int status = child.wait();
  const std::string output = child.output();
  INFO(output);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  long long loaded = 0, rounds = 0;
  const size_t at = output.find("loaded ");
  REQUIRE(at != output.npos);
  REQUIRE(std::sscanf(output.c_str() + at, "loaded %lld of %lld", &loaded, &rounds) == 2);
  CHECK(loaded > 0);
  CHECK(rounds >= 4000);
  CHECK(loaded < rounds / 2);
}

}  // namespace

TEST_CASE("safetensors_fuzz child: files", "[.child]") {
  const TempFolder folder;
  save_safetensors(some_tensors(), folder / "f");
  limit_memory(256 << 20);
  mutate(folder / "f", folder / "f", 8 + 8 + 3, 8000);
}

TEST_CASE("safetensors_fuzz child: indices", "[.child]") {
  const TempFolder folder;
  save_hugging_face(some_tensors(), folder / "f", 8);
  limit_memory(256 << 20);
  mutate(folder / "f", folder / "f/model.safetensors.index.json", 0, 4000);
}

TEST_CASE("safetensors_fuzz: damaged files") { check_child("safetensors_fuzz child: files"); }

TEST_CASE("safetensors_fuzz: damaged indices") { check_child("safetensors_fuzz child: indices"); }

}  // namespace dtensor
