// A JSON file that grows and is whole at any moment, also when the process is killed.
#pragma once

#include <sys/types.h>

#include <string>

namespace dtensor::internal {

class TraceFile {
 public:
  // `head`: the text before the first element of the list in the file, "{...,\"traceEvents\": [". Replaces an existing
  // file. Error (ValueError): it cannot be written.
  TraceFile(std::string path, const std::string& head);
  ~TraceFile();
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  const std::string& path() const { return path_; }
  // Appends elements of the list; `text` begins with the comma that separates them from those before. If the file
  // cannot be written any more, a line on stderr says so, once, and the file stays valid without them. Not thread-safe.
  void append(const std::string& text);

 private:
  bool write(const std::string& text);

  const std::string path_;
  const int fd_;
  off_t size_ = 0;  // without the brackets that close the document
  bool failed_ = false;
};

}  // namespace dtensor::internal
