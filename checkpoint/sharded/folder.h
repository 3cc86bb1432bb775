// The folder of a checkpoint. Internal.
#pragma once

#include <string>

#include "checkpoint/sharded/manifest.h"

namespace dtensor {

// With those above it, where they are not there. Error (c10::Error): by path and the system's words.
void make_folder(const std::string& folder);

// Held while a save to the folder is under way, by the process of rank 0; freed where that process ends, too.
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

// Of the checkpoint that was there before, and of saves that did not end.
void remove_other_part_files(const std::string& folder, const Manifest& manifest) noexcept;

}  // namespace dtensor
