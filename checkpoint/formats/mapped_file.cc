#include "checkpoint/formats/mapped_file.h"

#include <c10/util/Exception.h>
#include <c10/util/error.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace dtensor {
namespace {

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  TORCH_CHECK(false, "[load] '", path, "' ", what, ": ", c10::utils::str_error(error));
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  // Without O_NONBLOCK, opening a pipe waits for a writer.
  const int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
  if (fd < 0) fail(path_, "cannot be opened", errno);
  const absl::Cleanup close_fd = [fd] { ::close(fd); };
  struct stat status;
  if (::fstat(fd, &status) != 0) fail(path_, "cannot be read", errno);
  TORCH_CHECK(S_ISREG(status.st_mode), "[load] '", path_, "' is ",
              S_ISDIR(status.st_mode) ? "a folder" : "no regular file", ", and a regular file is needed");
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;  // mmap refuses to map nothing
  // Private and writable: an in-place operator on a view works, on a copy of the page. No memory is set aside for that.
  void* memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) fail(path_, "cannot be mapped into memory", errno);
  data_ = static_cast<char*>(memory);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::read_in_order() const noexcept {
  if (data_ != nullptr) ::madvise(data_, size_, MADV_SEQUENTIAL);
}

}  // namespace dtensor
