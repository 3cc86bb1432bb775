#include "observe/trace_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtensor::internal {
namespace {

constexpr char kEnd[] = "\n]}\n";  // closes the list and the document

}  // namespace

TraceFile::TraceFile(std::string path, const std::string& head)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  const bool written = fd_ >= 0 && write(head);
  if (!written && fd_ >= 0) ::close(fd_);
  TORCH_CHECK_VALUE(written, "CommTrace: ", path_, " cannot be written: ", std::strerror(errno));
}

TraceFile::~TraceFile() { ::close(fd_); }

void TraceFile::append(const std::string& text) {
  if (failed_ || write(text)) return;
  failed_ = true;
  std::fprintf(stderr, "[dtensor] the trace ends here, as %s cannot be written: %s\n", path_.c_str(),
               std::strerror(errno));
  [[maybe_unused]] const int cut = ::ftruncate(fd_, size_);
  [[maybe_unused]] const ssize_t end = ::pwrite(fd_, kEnd, sizeof kEnd - 1, size_);
}

// Overwrites kEnd at the end of the file with `text` and a new kEnd in one call, so that the file is valid JSON at any
// moment.
bool TraceFile::write(const std::string& text) {
  const std::string all = absl::StrCat(text, kEnd);
  for (size_t done = 0; done < all.size();) {
    const ssize_t n = ::pwrite(fd_, all.data() + done, all.size() - done, size_ + static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  size_ += static_cast<off_t>(text.size());
  return true;
}

}  // namespace dtensor::internal
