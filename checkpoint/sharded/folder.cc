#include "checkpoint/sharded/folder.h"

#include <c10/util/Exception.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "checkpoint/sharded/part_file.h"

namespace dtensor::internal {

namespace {

// Makes the folder's entries survive a power failure; errors of file systems that cannot do so are ignored.
void sync_folder(const std::string& folder) {
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  fsync(fd);
  close(fd);
}

}  // namespace

void make_folder(const std::string& folder) {
  TORCH_CHECK_VALUE(!folder.empty(), "the folder has no name");
  for (size_t slash = folder.find('/', 1);; slash = folder.find('/', slash + 1)) {
    const std::string part = folder.substr(0, slash);
    if (mkdir(part.c_str(), 0777) == 0) {
      const size_t above = part.rfind('/');
      sync_folder(above == std::string::npos ? "." : part.substr(0, std::max<size_t>(above, 1)));
    } else {
      const int error = errno;
      struct stat info {};
      const bool there = error == EEXIST && stat(part.c_str(), &info) == 0;
      TORCH_CHECK(there && S_ISDIR(info.st_mode), "the folder '", part,
                  "' cannot be made: ", std::strerror(there ? ENOTDIR : error));
    }
    if (slash == std::string::npos) return;
  }
}

FolderLock::FolderLock(const std::string& folder) : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  TORCH_CHECK(fd_ >= 0, "'", folder, "' cannot be opened: ", std::strerror(errno));
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
  const int error = errno;
  close(std::exchange(fd_, -1));
  TORCH_CHECK(error != EWOULDBLOCK, "another save to it is under way; wait() for that first");
  TORCH_CHECK(false, "it cannot be locked: ", std::strerror(error));
}

FolderLock::FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FolderLock& FolderLock::operator=(FolderLock&& other) noexcept {
  release();
  fd_ = std::exchange(other.fd_, -1);
  return *this;
}

FolderLock::~FolderLock() { release(); }

// A child of this process may have the file open, too.
void FolderLock::release() noexcept {
  if (fd_ < 0) return;
  flock(fd_, LOCK_UN);
  close(fd_);
}

void remove_other_part_files(const std::string& folder, const Manifest& manifest) noexcept {
  DIR* dir = opendir(folder.c_str());
  if (dir == nullptr) return;
  std::vector<std::string> others;
  while (const dirent* entry = readdir(dir)) {
    const std::string name = entry->d_name;
    const bool unfinished = absl::StartsWith(name, kManifestName) && absl::EndsWith(name, ".unfinished");
    if (unfinished || (is_part_file_name(name) && manifest.files.count(name) == 0)) others.push_back(name);
  }
  closedir(dir);
  for (const std::string& name : others) std::remove((folder + "/" + name).c_str());
}

}  // namespace dtensor::internal
