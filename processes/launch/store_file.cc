#include "processes/launch/store_file.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include "absl/strings/str_cat.h"

namespace dtensor::internal {

uint64_t StoreFile::inode() const {
  struct stat info = {};
  return ::stat(path_.c_str(), &info) == 0 ? info.st_ino : 0;
}

void StoreFile::remember() { remembered_ = inode(); }

void StoreFile::check() const {
  const uint64_t remembered = remembered_;
  if (remembered == 0) return;
  const uint64_t now = inode();
  if (now == remembered) return;
  C10_THROW_ERROR(DistStoreError,
                  absl::StrCat("the file ", path_, " at which the ranks met ",
                               now == 0 ? "was removed" : "was replaced by another one", " while the job runs"));
}

}  // namespace dtensor::internal
