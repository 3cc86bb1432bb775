// A file that exists whole or not at all.
//
// Data is written to a fresh file in the same folder, which replaces the target at the end, when it has reached the
// disk. So readers never see an incomplete file, several writers of one file do not disturb each other (the last one
// stays), and after an error, a kill or a crash the older file is unchanged.
//
//   AtomicFile file("model.pt");
//   file.write(bytes.data(), bytes.size());
//   file.commit();  // before it: nothing, or the older file
//
// The new file has the permissions of the one that it replaces, not its owner; without one, those that the umask gives.
// Only a regular file is replaced: folders, devices, pipes and symbolic links are rejected, so a link never becomes a
// file, and its target is written under its own name only. A process that is killed leaves its unfinished file,
// "NAME.<16 digits>.unfinished", which may be removed. Independent of tensors.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace dtensor::internal {

// Not thread-safe; several at once may write one path. Errors (c10::Error), all of them with the path and the system's
// words: the folder does not exist or may not be written, `path` is no regular file, the disk is full.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path);
  ~AtomicFile();  // removes the file if not committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  // Appends n bytes: all of them, or an error.
  void write(const void* data, size_t n);
  // The unfinished file, for writers that need more than write(): for pwrite() and ftruncate(). It stays this object's.
  int fd() const { return fd_; }
  const std::string& path() const { return path_; }
  std::string unfinished_path() const;
  // The file is on the disk, under its name. Once; nothing may be written afterwards. After an error nothing has
  // changed, but for one that says that the file is complete and may not survive a power failure.
  void commit();

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  void check_replaceable();
  void check_own() const;

  std::string path_, name_, unfinished_;  // the latter two are in folder_
  int folder_ = -1, fd_ = -1;
  int mode_ = -1;  // permissions of the older file
};

// For writers that take a path: `write` fills the file of that path, which exists, in place.
// Errors: as above, and those of `write`.
void write_atomically(const std::string& path, const std::function<void(const std::string& unfinished_path)>& write);

}  // namespace dtensor::internal
