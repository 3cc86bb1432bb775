#include "checkpoint/formats/zip_file.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <vector>

namespace dtensor::internal {
namespace {

// Signatures from APPNOTE.TXT, the description of the format. All numbers are little endian, as on this machine.
constexpr uint32_t kEnd = 0x06054b50, kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50, kEntry = 0x02014b50,
                   kLocal = 0x04034b50;
constexpr size_t kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20, kEntryBytes = 46, kLocalBytes = 30;
constexpr size_t kLongestComment = 65535;

template <typename T>
T number(const std::string& bytes, size_t at) {
  TORCH_CHECK(at <= bytes.size() && sizeof(T) <= bytes.size() - at, "damaged: its list of records ends too early");
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

// The first sizes and offset that do not fit 32 bits stand in an extra field, one after the other.
void widen(const std::string& extra, std::initializer_list<uint64_t*> values) {
  for (size_t at = 0; at + 4 <= extra.size();) {
    const auto id = number<uint16_t>(extra, at), length = number<uint16_t>(extra, at + 2);
    at += 4;
    if (id == 1) {
      size_t field = at;
      for (uint64_t* value : values) {
        if (*value != UINT32_MAX) continue;
        TORCH_CHECK(field + 8 <= at + length, "damaged: a size of a record is missing");
        *value = number<uint64_t>(extra, field);
        field += 8;
      }
      return;
    }
    at += length;
  }
}

}  // namespace

ZipFile::ZipFile(const std::string& path) {
  // Without waiting, should it be a pipe.
  do {
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd_ == -1 && errno == EINTR);
  TORCH_CHECK(fd_ != -1 || errno != ENOENT, "no such file");
  TORCH_CHECK(fd_ != -1, "it cannot be read: ", std::generic_category().message(errno));
  try {
    struct stat s {};
    TORCH_CHECK(::fstat(fd_, &s) == 0 && S_ISREG(s.st_mode), "it is no regular file");
    read_directory(static_cast<uint64_t>(s.st_size));
  } catch (...) {
    ::close(fd_);  // no destructor runs
    throw;
  }
}

ZipFile::~ZipFile() { ::close(fd_); }

void ZipFile::read_at(uint64_t offset, void* to, size_t n) const {
  char* bytes = static_cast<char*>(to);
  while (n > 0) {
    const ssize_t got = ::pread(fd_, bytes, n, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    TORCH_CHECK(got >= 0, "it cannot be read: ", std::generic_category().message(errno));
    TORCH_CHECK(got > 0, "damaged: it ends too early");
    bytes += got;
    offset += static_cast<uint64_t>(got);
    n -= static_cast<size_t>(got);
  }
}

void ZipFile::read_directory(uint64_t file_size) {
  std::string tail(std::min<uint64_t>(file_size, kEndBytes + kLongestComment + kLocatorBytes), '\0');
  const uint64_t tail_at = file_size - tail.size();
  read_at(tail_at, tail.data(), tail.size());
  size_t end = tail.size();  // where the end record is, which a comment may follow
  for (size_t at = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; at-- > 0 && end == tail.size();) {
    if (number<uint32_t>(tail, at) == kEnd && at + kEndBytes + number<uint16_t>(tail, at + 20) == tail.size()) end = at;
  }
  TORCH_CHECK(end != tail.size(), "no file of torch, or cut short: it is no zip archive");
  uint64_t count = number<uint16_t>(tail, end + 10), bytes = number<uint32_t>(tail, end + 12);
  directory_at_ = number<uint32_t>(tail, end + 16);
  uint64_t directory_end = tail_at + end;
  if (end >= kLocatorBytes && number<uint32_t>(tail, end - kLocatorBytes) == kEnd64Locator) {
    directory_end = number<uint64_t>(tail, end - kLocatorBytes + 8);
    TORCH_CHECK(directory_end <= file_size && kEnd64Bytes <= file_size - directory_end,
                "damaged: its list of records lies outside");
    std::string end64(kEnd64Bytes, '\0');
    read_at(directory_end, end64.data(), end64.size());
    TORCH_CHECK(number<uint32_t>(end64, 0) == kEnd64, "damaged: its list of records is not there");
    count = number<uint64_t>(end64, 32);
    bytes = number<uint64_t>(end64, 40);
    directory_at_ = number<uint64_t>(end64, 48);
  }
  TORCH_CHECK(directory_at_ <= directory_end && bytes <= directory_end - directory_at_ && count <= bytes / kEntryBytes,
              "damaged: its list of records lies outside");
  std::string directory(bytes, '\0');
  read_at(directory_at_, directory.data(), directory.size());
  std::string folder;  // of all records, with its slash
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (size_t at = 0, i = 0; i < count; ++i) {
    std::string name;
    const Record record = parse_entry(directory, at, name);
    at += kEntryBytes + number<uint16_t>(directory, at + 28) + number<uint16_t>(directory, at + 30) +
          number<uint16_t>(directory, at + 32);
    if (i == 0) folder = name.substr(0, name.find('/') + 1);
    TORCH_CHECK(name.compare(0, folder.size(), folder) == 0, "no file of torch: its records lie in several folders");
    TORCH_CHECK(records_.emplace(name.substr(folder.size()), record).second, "damaged: it has two records '", name,
                "'");
    if (record.stored) ranges.emplace_back(record.offset, record.size);
  }
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 0; i + 1 < ranges.size(); ++i) {
    TORCH_CHECK(ranges[i].second <= ranges[i + 1].first - ranges[i].first, "damaged: its records overlap");
  }
}

ZipFile::Record ZipFile::parse_entry(const std::string& directory, size_t at, std::string& name) const {
  TORCH_CHECK(number<uint32_t>(directory, at) == kEntry, "damaged: its list of records ends too early");
  const auto method = number<uint16_t>(directory, at + 10), flags = number<uint16_t>(directory, at + 8);
  uint64_t packed = number<uint32_t>(directory, at + 20), size = number<uint32_t>(directory, at + 24);
  uint64_t local = number<uint32_t>(directory, at + 42);
  const size_t name_bytes = number<uint16_t>(directory, at + 28), extra_bytes = number<uint16_t>(directory, at + 30);
  at += kEntryBytes;
  TORCH_CHECK(name_bytes + extra_bytes <= directory.size() - at, "damaged: its list of records ends too early");
  name = directory.substr(at, name_bytes);
  widen(directory.substr(at + name_bytes, extra_bytes), {&size, &packed, &local});
  Record record;
  record.size = size;
  record.stored = method == 0 && (flags & 1) == 0;
  if (!record.stored) return record;  // TorchScript's code, for instance
  TORCH_CHECK(local <= directory_at_ && kLocalBytes <= directory_at_ - local, "damaged: record '", name,
              "' lies outside");
  std::string header(kLocalBytes, '\0');
  read_at(local, header.data(), header.size());
  TORCH_CHECK(number<uint32_t>(header, 0) == kLocal, "damaged: record '", name, "' is not where it should be");
  record.offset = local + kLocalBytes + number<uint16_t>(header, 26) + number<uint16_t>(header, 28);
  TORCH_CHECK(packed == size && record.offset <= directory_at_ && size <= directory_at_ - record.offset,
              "damaged: record '", name, "' of ", size, " bytes does not fit the file");
  return record;
}

const ZipFile::Record& ZipFile::find(const std::string& name) const {
  const auto it = records_.find(name);
  TORCH_CHECK(it != records_.end(), "no file of torch, or damaged: record '", name, "' is missing");
  TORCH_CHECK(it->second.stored, "record '", name,
              "' is compressed or encrypted, which torch does not write; "
              "store it again with torch.save");
  return it->second;
}

uint64_t ZipFile::size(const std::string& name) const { return find(name).size; }

void ZipFile::read(const std::string& name, void* to) const {
  const Record& record = find(name);
  read_at(record.offset, to, record.size);
}

std::string ZipFile::read_text(const std::string& name, uint64_t limit) const {
  const Record& record = find(name);
  TORCH_CHECK(record.size <= limit, "record '", name, "' of ", record.size, " bytes is longer than the ", limit,
              " bytes that are read");
  std::string text(record.size, '\0');
  read(name, text.data());
  return text;
}

}  // namespace dtensor::internal
