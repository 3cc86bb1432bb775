#include "checkpoint/checkpoint_series.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/sharded/contents.h"
#include "checkpoint/sharded/folder.h"
#include "checkpoint/sharded/manifest.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr char kPrefix[] = "step-";

}  // namespace

CheckpointSeries::CheckpointSeries(std::string folder, int64_t keep_last)
    : folder_(std::move(folder)), keep_last_(keep_last) {
  TORCH_CHECK_VALUE(keep_last >= 1, "CheckpointSeries: keep_last is ", keep_last, "; the last one is always kept");
}

std::string CheckpointSeries::folder(int64_t step) const {
  TORCH_CHECK_VALUE(step >= 0, "CheckpointSeries: step must be >= 0, got ", step);
  return absl::StrCat(folder_, "/", kPrefix, absl::StrFormat("%010d", step));
}

std::vector<int64_t> CheckpointSeries::steps() const {
  std::vector<int64_t> steps = folders();
  std::erase_if(steps, [&](int64_t step) { return !is_whole(step); });
  return steps;
}

std::vector<int64_t> CheckpointSeries::folders() const {
  std::vector<int64_t> steps;
  DIR* dir = opendir(folder_.c_str());
  if (dir == nullptr) return steps;
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    int64_t step = 0;
    if (name.rfind(kPrefix, 0) != 0 || !absl::SimpleAtoi(name.substr(sizeof kPrefix - 1), &step) || step < 0) continue;
    if (folder(step) == folder_ + "/" + name) steps.push_back(step);
  }
  closedir(dir);
  std::sort(steps.begin(), steps.end());
  return steps;
}

bool CheckpointSeries::is_whole(int64_t step) const {
  return access(absl::StrCat(folder(step), "/", kManifestName).c_str(), F_OK) == 0;
}

std::optional<int64_t> CheckpointSeries::latest() const {
  const std::vector<int64_t> all = steps();
  return all.empty() ? std::nullopt : std::optional(all.back());
}

void CheckpointSeries::save(int64_t step, const CheckpointContents& contents,
                            const SaveCheckpointOptions& options) const {
  save_checkpoint(folder(step), contents, options);
  const World world = world_of(contents, options.world);
  if (!world.defined() || world.owned_ranks().front() == 0) remove_older(step);
}

void CheckpointSeries::remove_older(int64_t last) const {
  std::vector<int64_t> all = folders();
  std::erase_if(all, [&](int64_t step) { return step > last; });
  int64_t kept = 0;
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    if (is_whole(*step) && kept++ < keep_last_) continue;
    const std::string path = folder(*step);
    try {
      const FolderLock lock(path);  // no process is saving to it
      // From here on it is none; what a process that is killed leaves is removed the next time.
      std::remove(absl::StrCat(path, "/", kManifestName).c_str());
      remove_other_part_files(path, Manifest());
      rmdir(path.c_str());
    } catch (const c10::Error&) {
    }
  }
}

}  // namespace dtensor
