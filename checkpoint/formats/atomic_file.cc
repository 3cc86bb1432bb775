#include "checkpoint/formats/atomic_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace dtensor::internal {
namespace {

// Again while a signal interrupts it.
template <typename F>
auto retried(const F& call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

const char* kind_of(mode_t mode) {
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

// An unused name of at most 255 bytes, the limit of file systems.
std::string fresh_name(const std::string& name) {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return absl::StrCat(name.substr(0, 220), ".", absl::Hex(number, absl::kZeroPad16), ".unfinished");
}

}  // namespace

AtomicFile::AtomicFile(std::string path) : path_(std::move(path)) {
  const size_t slash = path_.rfind('/');
  name_ = slash == std::string::npos ? path_ : path_.substr(slash + 1);
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  // By descriptor, so that chdir() and a renamed folder do not matter.
  folder_ = retried([&] { return ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
  if (folder_ == -1 && errno == EACCES)  // may be used, not listed
    folder_ = retried([&] { return ::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC); });
  if (folder_ == -1) fail("its folder cannot be opened", errno);
  try {
    check_replaceable();
    // Only the owner may read a private file; the owner may write until it is finished.
    const mode_t mode = mode_ == -1 ? 0666 : static_cast<mode_t>(mode_) | 0600;
    for (int attempt = 0; fd_ == -1; ++attempt) {
      unfinished_ = fresh_name(name_);
      const int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
      fd_ = retried([&] { return ::openat(folder_, unfinished_.c_str(), flags, mode); });
      if (fd_ == -1 && (errno != EEXIST || attempt == 100)) fail("it cannot be written", errno);
    }
  } catch (...) {
    ::close(folder_);  // no destructor runs
    throw;
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ != -1) ::close(fd_);
  if (!unfinished_.empty()) ::unlinkat(folder_, unfinished_.c_str(), 0);
  ::close(folder_);
}

void AtomicFile::fail(const char* what, int error) const {
  TORCH_CHECK(false, "[save] '", path_, "': ", what, ": ", std::generic_category().message(error));
}

void AtomicFile::check_replaceable() {
  TORCH_CHECK(!name_.empty() && name_ != "." && name_ != "..", "[save] '", path_, "' names no file");
  struct stat old {};
  if (::fstatat(folder_, name_.c_str(), &old, AT_SYMLINK_NOFOLLOW) != 0) {
    if (errno != ENOENT) fail("it cannot be written", errno);
    return;
  }
  TORCH_CHECK(S_ISREG(old.st_mode), "[save] '", path_, "' is ", kind_of(old.st_mode),
              ", which is not replaced: name a regular file, or one that does not exist");
  mode_ = static_cast<int>(old.st_mode & 0777);
}

void AtomicFile::check_own() const {
  struct stat ours {
  }, named{};
  const bool same = ::fstat(fd_, &ours) == 0 &&
                    ::fstatat(folder_, unfinished_.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 &&
                    ours.st_dev == named.st_dev && ours.st_ino == named.st_ino;
  TORCH_CHECK(same, "[save] '", path_, "': its unfinished file '", unfinished_, "' was removed or replaced");
}

std::string AtomicFile::unfinished_path() const { return path_.substr(0, path_.size() - name_.size()) + unfinished_; }

void AtomicFile::write(const void* data, size_t n) {
  TORCH_CHECK(fd_ != -1, "[save] '", path_, "' is finished: nothing can be written to it");
  const char* bytes = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t written = retried([&] { return ::write(fd_, bytes, n); });
    if (written <= 0) fail("it cannot be written", written == 0 ? ENOSPC : errno);
    bytes += written;
    n -= static_cast<size_t>(written);
  }
}

void AtomicFile::commit() {
  TORCH_CHECK(fd_ != -1, "[save] '", path_, "' is finished already");
  check_own();
  if (mode_ != -1 && ::fchmod(fd_, static_cast<mode_t>(mode_)) != 0) fail("its permissions cannot be kept", errno);
  if (retried([&] { return ::fsync(fd_); }) != 0) fail("it cannot be written", errno);
  // Network file systems report a full disk here. The file is closed in any case, also by an interrupted call.
  if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) fail("it cannot be written", errno);
  check_replaceable();
  if (::renameat(folder_, unfinished_.c_str(), folder_, name_.c_str()) != 0) fail("it cannot be replaced", errno);
  unfinished_.clear();
  // Folders that may not be listed, and some network file systems, have no fsync.
  if (retried([&] { return ::fsync(folder_); }) != 0 && errno != EBADF && errno != EINVAL && errno != ENOTSUP)
    fail("it is complete, but may not survive a power failure", errno);
}

void write_atomically(const std::string& path, const std::function<void(const std::string& unfinished_path)>& write) {
  AtomicFile file(path);
  write(file.unfinished_path());
  file.commit();
}

}  // namespace dtensor::internal
