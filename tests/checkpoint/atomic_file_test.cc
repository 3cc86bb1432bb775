// A file is whole or not there, whatever fails; and what is no regular file stays what it is.
#include "checkpoint/formats/atomic_file.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <thread>

#include "checkpoint/serialize.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"
#include "tests/testing/error_text.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::Child;
using testing::error_text;
using testing::read_file;
using testing::TempFolder;

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = ::opendir(folder.c_str());
  REQUIRE(dir != nullptr);
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

void put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

mode_t mode_of(const std::string& path) {
  struct stat s {};
  REQUIRE(::lstat(path.c_str(), &s) == 0);
  return s.st_mode;
}

// Files of no more than so many bytes, as on a disk that is full then.
void limit_files(rlim_t bytes) {
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  limit.rlim_cur = bytes;
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

}  // namespace

TEST_CASE("atomic_file: invisible before commit, and errors leave no file") {
  const TempFolder folder;
  const std::string path = folder / "f";
  {
    AtomicFile file(path);
    file.write("new", 3);
    CHECK(names_in(folder / "").size() == 1);
    CHECK(read_file(file.unfinished_path()) == "new");
    file.write(" bytes", 6);
    file.commit();
    CHECK(names_in(folder / "") == std::vector<std::string>{"f"});
    CHECK_THROWS_WITH(file.commit(), Catch::Contains("finished already"));
    CHECK_THROWS_WITH(file.write("x", 1), Catch::Contains("is finished"));
  }
  CHECK(read_file(path) == "new bytes");
  {
    AtomicFile file(path);
    file.write("x", 1);
  }
  CHECK(read_file(path) == "new bytes");
  CHECK_THROWS_WITH(write_atomically(path,
                                     [](const std::string& p) {
                                       put(p, "half");
                                       throw std::runtime_error("the writer failed");
                                     }),
                    "the writer failed");
  CHECK(read_file(path) == "new bytes");
  CHECK(names_in(folder / "") == std::vector<std::string>{"f"});
  write_atomically(path, [](const std::string& p) { put(p, "by path"); });
  CHECK(read_file(path) == "by path");
  // Another file in the place of the unfinished one is not what has been asked for.
  const std::string text = error_text([&] {
    write_atomically(path, [&](const std::string& p) {
      put(folder / "other", "?");
      ::rename((folder / "other").c_str(), p.c_str());
    });
  });
  CHECK_THAT(text, Catch::Contains("removed or replaced") && Catch::Contains(path));
  CHECK(read_file(path) == "by path");
}

TEST_CASE("atomic_file: permissions are those of the older file, or the umask's") {
  const TempFolder folder;
  const mode_t umask_before = ::umask(027);
  AtomicFile(folder / "fresh").commit();
  for (const mode_t mode : {0600, 0444, 0755, 0666}) {
    put(folder / "old", "old");
    REQUIRE(::chmod((folder / "old").c_str(), mode) == 0);
    write_atomically(folder / "old", [](const std::string& p) { put(p, "new"); });
    CHECK((mode_of(folder / "old") & 07777) == mode);
    CHECK(read_file(folder / "old") == "new");
    REQUIRE(::unlink((folder / "old").c_str()) == 0);
  }
  // A file that will be private is private while it is written.
  put(folder / "private", "old");
  REQUIRE(::chmod((folder / "private").c_str(), 0600) == 0);
  const AtomicFile file(folder / "private");
  CHECK((mode_of(file.unfinished_path()) & 07777) == 0600);
  ::umask(umask_before);
  CHECK((mode_of(folder / "fresh") & 07777) == 0640);
}

TEST_CASE("atomic_file: an existing path that is no regular file is not replaced") {
  const TempFolder folder;
  put(folder / "target", "old");
  REQUIRE(::symlink("target", (folder / "link").c_str()) == 0);
  REQUIRE(::symlink("nowhere", (folder / "dangling").c_str()) == 0);
  REQUIRE(::mkdir((folder / "folder").c_str(), 0700) == 0);
  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const auto before = names_in(folder / "");
  const auto text = [&](const std::string& name) {
    const std::string path = folder / name;
    const std::string text = error_text([&] { save(NamedTensors{{"a", torch::ones({1})}}, path); });
    CHECK_THAT(text, Catch::Contains("'" + path + "'"));
    return text;
  };
  CHECK_THAT(text("link"), Catch::Contains("is a symbolic link, which is not replaced"));
  CHECK_THAT(text("dangling"), Catch::Contains("is a symbolic link"));
  CHECK_THAT(text("folder"), Catch::Contains("is a folder"));
  CHECK_THAT(text("folder/"), Catch::Contains("names no file"));
  CHECK_THAT(text("folder/.."), Catch::Contains("names no file"));
  CHECK_THAT(text("pipe"), Catch::Contains("is a pipe"));
  CHECK_THAT(text("none/file"), Catch::Contains("No such file or directory"));
  CHECK_THAT(text("target/file"), Catch::Contains("Not a directory"));
  CHECK_THAT(text(std::string(256, 'x')), Catch::Contains("File name too long"));
  CHECK_THROWS_WITH(AtomicFile(""), Catch::Contains("names no file"));
  CHECK(S_ISLNK(mode_of(folder / "link")));
  CHECK(S_ISFIFO(mode_of(folder / "pipe")));
  CHECK(read_file(folder / "target") == "old");
  CHECK(names_in(folder / "") == before);
  // What becomes something else meanwhile is not replaced either.
  AtomicFile late(folder / "target");
  REQUIRE(::unlink((folder / "target").c_str()) == 0);
  REQUIRE(::mkdir((folder / "target").c_str(), 0700) == 0);
  CHECK_THROWS_WITH(late.commit(), Catch::Contains("is a folder"));
}

TEST_CASE("atomic_file: many writers of one file, and a reader that never sees an incomplete file") {
  const TempFolder folder;
  const std::string path = folder / "f";
  constexpr size_t kBytes = 200'000;
  const auto whole = [](const std::string& s) { return s.size() == kBytes && s == std::string(kBytes, s[0]); };
  write_atomically(path, [](const std::string& p) { put(p, std::string(kBytes, '.')); });
  std::vector<std::thread> writers;
  for (char c = 'a'; c < 'e'; ++c) {
    writers.emplace_back([&path, c] {
      for (int i = 0; i < 20; ++i) {
        AtomicFile file(path);
        const std::string half(kBytes / 2, c);
        file.write(half.data(), half.size());
        file.write(half.data(), half.size());
        file.commit();
      }
    });
  }
  int torn = 0;
  for (int i = 0; i < 200; ++i) torn += whole(read_file(path)) ? 0 : 1;
  for (auto& w : writers) w.join();
  CHECK(torn == 0);
  CHECK(whole(read_file(path)));
  CHECK(names_in(folder / "") == std::vector<std::string>{"f"});
}

TEST_CASE("child: a disk that is full at every byte of a save", "[.child]") {
  ::signal(SIGXFSZ, SIG_IGN);
  const TempFolder folder;
  torch::nn::Linear model(2, 1);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  model(torch::ones({1, 2})).sum().backward();
  optimizer.step();
  const std::vector<std::pair<std::string, std::function<void(const std::string&)>>> saves{
      {"tensor", [](const std::string& p) { save(torch::ones({3}), p); }},
      {"named",
       [](const std::string& p) {
         save(NamedTensors{{"a", torch::ones({3})}}, p);
       }},
      {"module", [&](const std::string& p) { save(*model, p); }},
      {"optimizer", [&](const std::string& p) { save(optimizer, p); }}};
  for (const auto& [name, write] : saves) {
    const std::string path = folder / name;
    write(path);
    const std::string old = read_file(path);
    REQUIRE(old.size() < 20'000);
    size_t wrong = 0;
    // Archives have some kilobytes of code: there every 11th byte.
    const size_t step = old.size() < 4000 ? 1 : 11;
    for (size_t bytes = 0; bytes < old.size(); bytes += step) {
      limit_files(bytes);
      const std::string text = error_text([&, &write = write] { write(path); });
      limit_files(RLIM_INFINITY);
      const bool named =
          text.find("'" + path + "'") != std::string::npos && text.find("File too large") != std::string::npos;
      if (!named || read_file(path) != old) ++wrong;
    }
    CHECK(wrong == 0);
  }
  CHECK(names_in(folder / "").size() == saves.size());
  std::printf("every byte was tried\n");
}

TEST_CASE("atomic_file: a full disk at any byte is an error with the path, and the older file stays") {
  Child child("child: a disk that is full at every byte of a save", {});
  CHECK(child.wait() == 0);
  CHECK_THAT(child.output(), Catch::Contains("every byte was tried"));
}

}  // namespace dtensor
