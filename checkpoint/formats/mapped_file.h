// A file's bytes as memory, read from the disk on access.
//
//   const MappedFile file("weights.safetensors");
//   uint64_t n = 0;
//   if (file.size() >= 8) std::memcpy(&n, file.data(), 8);
//
// The memory is private to the process: writing to it changes neither the file nor what other processes see. The file
// may be removed or replaced by another one of its name meanwhile, as our own writers do it; if a program shortens the
// file itself, reading the removed part raises SIGBUS, and writes into the file may change the bytes read.
#pragma once

#include <cstddef>
#include <string>

namespace dtensor {

// Movable; the memory goes with the object. Any number of threads may read at once.
class MappedFile {
 public:
  // Errors (c10::Error), with the path and the system's words: there is none, it cannot be read, it is no regular file
  // (a pipe or a device is refused, not waited for).
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  char* data() const { return data_; }   // nullptr where the file is empty
  size_t size() const { return size_; }  // bytes
  // Announces that one thread will read the bytes in order: the system then reads ahead in large pieces, as for read().
  // A hint.
  void read_in_order() const noexcept;

 private:
  std::string path_;
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace dtensor
