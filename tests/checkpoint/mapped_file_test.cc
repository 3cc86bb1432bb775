#include "checkpoint/formats/mapped_file.h"

#include <sys/stat.h>

#include <cstring>
#include <fstream>

#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
namespace {

using testing::TempFolder;

std::string written(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

}  // namespace

TEST_CASE("mapped_file: bytes and size, also of files that are empty, removed, or longer than a page") {
  const TempFolder folder;
  const std::string text(10'000, 'x');
  MappedFile file(written(folder / "long", text + "end"));
  CHECK(file.path() == folder / "long");
  ::unlink((folder / "long").c_str());
  REQUIRE(file.size() == 10'003);
  CHECK(std::string(file.data(), file.size()) == text + "end");

  const MappedFile empty(written(folder / "empty", ""));
  CHECK(empty.size() == 0);
  CHECK(empty.data() == nullptr);

  const MappedFile moved = std::move(file);
  CHECK(std::string(moved.data() + 10'000, 3) == "end");
  CHECK(file.size() == 0);
  file = MappedFile(written(folder / "other", "abc"));
  CHECK(std::string(file.data(), file.size()) == "abc");
}

TEST_CASE("mapped_file: writes to the memory stay in this process") {
  const TempFolder folder;
  const std::string path = written(folder / "f", "abc");
  const MappedFile file(path), again(path);
  std::memcpy(file.data(), "xyz", 3);
  CHECK(std::string(again.data(), 3) == "abc");
  CHECK(testing::read_file(path) == "abc");
}

TEST_CASE("mapped_file: the hint to read in order changes no bytes") {
  const TempFolder folder;
  const MappedFile file(written(folder / "f", std::string(5000, 'x'))), empty(written(folder / "empty", ""));
  file.read_in_order();
  empty.read_in_order();
  CHECK(std::string(file.data(), file.size()) == std::string(5000, 'x'));
}

TEST_CASE("mapped_file: errors contain the path and the system's text") {
  const TempFolder folder;
  const auto fails = [](const std::string& path, const std::string& words) {
    CHECK_THROWS_WITH(MappedFile(path), Catch::Contains("'" + path + "'") && Catch::Contains(words));
  };
  fails(folder / "none", "No such file or directory");
  fails(folder / "", "is a folder");
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  fails(folder / "pipe", "no regular file");  // at once, not on the first write
  fails("/dev/zero", "no regular file");
  fails(written(folder / "file", "x") + "/below", "Not a directory");
}

}  // namespace dtensor
