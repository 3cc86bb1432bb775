// The file at which the ranks of a job meet, and whether it is still the one.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace dtensor::internal {

// FileStore would recreate a removed file, without the job's places and failures, or with those of another job.
// Thread-safe.
class StoreFile {
 public:
  explicit StoreFile(std::string path) : path_(std::move(path)) {}

  const std::string& path() const { return path_; }
  // Records that the ranks have met there: from now on the file must stay.
  void remember();
  uint64_t remembered() const { return remembered_; }  // the file's inode then; 0: nothing yet
  // Error (c10::DistStoreError): the file was removed, or another one is there now.
  void check() const;

 private:
  uint64_t inode() const;  // 0: there is none

  const std::string path_;
  std::atomic<uint64_t> remembered_{0};  // 0: nothing yet
};

}  // namespace dtensor::internal
