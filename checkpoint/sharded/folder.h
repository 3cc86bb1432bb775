// The folder of a checkpoint.
#pragma once

#include <string>

#include "checkpoint/sharded/manifest.h"

namespace dtensor::internal {

// Creates the folder and its parents if missing. Error (c10::Error): with the path and the system's text.
void make_folder(const std::string& folder);

// Held by the process of rank 0 during a save to the folder; released when the process ends, too.
class FolderLock {
 public:
  FolderLock() = default;  // of no folder
  // Error (c10::Error): another one holds it, in this process or another.
  explicit FolderLock(const std::string& folder);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;
  ~FolderLock();

 private:
  void release() noexcept;
  int fd_ = -1;
};

// Removes files of the previous checkpoint, and of unfinished saves.
void remove_other_part_files(const std::string& folder, const Manifest& manifest) noexcept;

}  // namespace dtensor::internal
