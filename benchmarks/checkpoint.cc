// Measures the speed of writing and reading checkpoints, compared with plain writes and reads of as many bytes on the
// same disk.
//
//   ./bazelw run //benchmarks:checkpoint -- --folder /data --mib 2048
//
// Gates: at least 70 % of plain write() and fsync(), and of plain read(), the best of seven turns each. Before a read
// the file is dropped from the system's cache.
#include "checkpoint/checkpoint.h"

#include <ATen/ops/rand.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "benchmarks/gates.h"
#include "dtensor/redistribute.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, folder, "/tmp", "where to write");
ABSL_FLAG(int64_t, mib, 512, "size of the tensors together");
ABSL_FLAG(int64_t, ranks, 4, "in this process");

namespace {

using namespace dtensor;
using namespace dtensor::tools;

constexpr int kTurns = 7;
constexpr size_t kBlock = size_t{64} << 20;

double seconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void plain_write(const std::string& path, const std::vector<char>& block, int64_t bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) throw UsageError(path + " cannot be written");
  for (int64_t left = bytes; left > 0;) {
    const ssize_t n = write(fd, block.data(), std::min<int64_t>(left, static_cast<int64_t>(block.size())));
    if (n <= 0) throw UsageError(path + " cannot be written");
    left -= n;
  }
  fsync(fd);
  close(fd);
}

void plain_read(const std::string& path, std::vector<char>& block) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  while (read(fd, block.data(), block.size()) > 0) {
  }
  close(fd);
}

// So that the next read is the disk's.
void forget(const std::string& folder) {
  DIR* dir = opendir(folder.c_str());
  while (const dirent* entry = dir == nullptr ? nullptr : readdir(dir)) {
    const int fd = open((folder + "/" + entry->d_name).c_str(), O_RDONLY | O_CLOEXEC);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
  }
  if (dir != nullptr) closedir(dir);
}

int run() {
  const std::string folder = absl::GetFlag(FLAGS_folder) + "/dtensor_checkpoint_benchmark";
  const int64_t ranks = absl::GetFlag(FLAGS_ranks), bytes = absl::GetFlag(FLAGS_mib) << 20;
  for (const std::string& path : {folder, folder + "/plain"}) mkdir(path.c_str(), 0700);
  const DeviceMesh mesh(World::local(ranks), {ranks});
  CheckpointContents contents;
  contents.random_state = false;
  for (int64_t k = 0; k < 8; ++k)
    contents.tensors["t" + std::to_string(k)] = distribute_tensor(at::rand({bytes / 8 / 4096, 1024}), mesh, {Shard(0)});
  std::vector<char> block(kBlock, 1);
  double write_plain = 1e9, save = 1e9, read_plain = 1e9, load = 1e9, load_unverified = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) {
    write_plain = std::min(write_plain, seconds([&] { plain_write(folder + "/plain/file", block, bytes); }));
    save = std::min(save, seconds([&] { save_checkpoint(folder + "/checkpoint", contents); }));
    forget(folder + "/plain");
    read_plain = std::min(read_plain, seconds([&] { plain_read(folder + "/plain/file", block); }));
    forget(folder + "/checkpoint");
    load = std::min(load, seconds([&] { load_checkpoint(folder + "/checkpoint", contents); }));
    LoadCheckpointOptions unverified;
    unverified.verify = false;
    forget(folder + "/checkpoint");
    load_unverified =
        std::min(load_unverified, seconds([&] { load_checkpoint(folder + "/checkpoint", contents, unverified); }));
  }
  const double gb = static_cast<double>(bytes) * 1e-9;
  std::printf("GB/s: plain write and fsync %.2f, save %.2f; plain read %.2f, load %.2f, without checksums %.2f\n",
              gb / write_plain, gb / save, gb / read_plain, gb / load, gb / load_unverified);
  benchmarks::Gates gates;
  gates.at_least("save / plain write and fsync", write_plain / save, 0.7);
  gates.at_least("load / plain read", read_plain / load, 0.7);
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("checkpoint", "Times saving and loading of checkpoints.", argc, argv, run);
}
