// The records of a zip archive, as torch writes them: stored, never compressed.
//
//   ZipFile zip("model.pt");
//   std::string pickle = zip.read_text("data.pkl", 1 << 20);
//
// Names are without the folder that all records of torch's files lie in ("archive/data.pkl"). Reading an untrusted file
// takes no more memory than its length: records are inside it and do not overlap, and compressed ones are rejected.
// Errors (c10::Error), without the path, which callers know: no such file, not a zip file, damaged, compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace dtensor::internal {

class ZipFile {
 public:
  explicit ZipFile(const std::string& path);
  ~ZipFile();
  ZipFile(const ZipFile&) = delete;
  ZipFile& operator=(const ZipFile&) = delete;

  bool has(const std::string& name) const { return records_.count(name) != 0; }
  // In bytes. Errors: no such record; it is compressed.
  uint64_t size(const std::string& name) const;
  // Writes the size(name) bytes of a record to `to`.
  void read(const std::string& name, void* to) const;
  // Error: longer than `limit`.
  std::string read_text(const std::string& name, uint64_t limit) const;

 private:
  struct Record {
    uint64_t offset = 0, size = 0;
    bool stored = true;
  };
  void read_directory(uint64_t file_size);
  Record parse_entry(const std::string& directory, size_t at, std::string& name) const;
  const Record& find(const std::string& name) const;
  void read_at(uint64_t offset, void* to, size_t n) const;

  int fd_ = -1;
  uint64_t directory_at_ = 0;
  std::map<std::string, Record> records_;
};

}  // namespace dtensor::internal
