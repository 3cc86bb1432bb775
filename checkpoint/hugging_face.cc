#include "checkpoint/hugging_face.h"

#include <c10/util/Exception.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "checkpoint/formats/hugging_face_index.h"

namespace dtensor {
using namespace internal;

namespace {

bool exists(const std::string& path, mode_t type) {
  struct stat status;
  return ::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IFMT) == type;
}

// A safetensors file has zeros in the first 8 bytes, its header's length, which JSON has not.
bool looks_like_json(const MappedFile& file) {
  const std::string_view start(file.data(), std::min<size_t>(file.size(), 8));
  const size_t brace = start.find_first_not_of(" \t\r\n");
  return brace != start.npos && start[brace] == '{' && start.find('\0') == start.npos;
}

// The file that `path` means: an index, or a safetensors file.
std::string weights_of(std::string path) {
  if (!exists(path, S_IFDIR)) return path;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  const std::string single = path + "/" + kSingleFile, index = path + "/" + kIndexFile;
  const bool has_single = exists(single, S_IFREG), has_index = exists(index, S_IFREG);
  TORCH_CHECK(has_single || has_index, "[load] '", path, "' has neither ", kSingleFile, " nor ", kIndexFile);
  TORCH_CHECK(!has_single || !has_index, "[load] '", path, "' has both ", kSingleFile, " and ", kIndexFile,
              ": give the path of the one that is meant");
  return has_single ? single : index;
}

}  // namespace

bool holds_safetensors(const std::string& path) try {
  if (exists(path, S_IFDIR))
    return exists(path + "/" + kSingleFile, S_IFREG) || exists(path + "/" + kIndexFile, S_IFREG);
  const MappedFile file(path);
  if (looks_like_json(file)) return true;
  uint64_t n = 0;
  if (file.size() < sizeof(n) + 1) return false;
  std::memcpy(&n, file.data(), sizeof(n));
  return n <= file.size() - sizeof(n) && file.data()[sizeof(n)] == '{';
} catch (const c10::Error&) {
  return false;
}

HuggingFaceFolder::HuggingFaceFolder(const std::string& path) : path_(weights_of(path)) {
  if (!absl::EndsWith(path_, kIndexFile) && !looks_like_json(MappedFile(path_))) {
    files_.emplace_back(path_);
    for (const SafetensorsEntry& e : files_[0].header().entries) file_of_.emplace(e.name, 0);
    return;
  }
  const HuggingFaceIndex index = read_hugging_face_index(path_);
  const size_t slash = path_.rfind('/');
  const std::string folder = slash == path_.npos ? "" : path_.substr(0, slash + 1);
  std::map<std::string, size_t> files;
  for (const auto& [name, file] : index.weight_map) {
    const auto [it, fresh] = files.emplace(file, files_.size());
    if (fresh) {
      TORCH_CHECK(exists(folder + file, S_IFREG), "[load] '", path_, "' says that tensor ", shown_name(name),
                  " is in '", folder, file, "', but there is no such file");
      files_.emplace_back(folder + file);
    }
    TORCH_CHECK(files_[it->second].contains(name), "[load] '", path_, "' says that tensor ", shown_name(name),
                " is in '", folder, file, "', which does not hold it");
    file_of_.emplace(name, it->second);
  }
  int64_t bytes = 0;
  for (size_t i = 0; i < files_.size(); ++i) {
    for (const SafetensorsEntry& e : files_[i].header().entries) {
      const auto it = file_of_.find(e.name);
      TORCH_CHECK(it != file_of_.end(), "[load] '", files_[i].path(), "' holds tensor ", shown_name(e.name),
                  ", which '", path_, "' does not name");
      TORCH_CHECK(it->second == i, "[load] '", files_[i].path(), "' holds tensor ", shown_name(e.name), ", which '",
                  path_, "' says is in '", files_[it->second].path(), "'");
      bytes += e.bytes();
    }
  }
  TORCH_CHECK(!index.total_size || *index.total_size == bytes, "[load] '", path_, "' says that its files hold ",
              index.total_size.value_or(0), " bytes of data (metadata.total_size), but those in '",
              folder.empty() ? "." : folder, "' hold ", bytes,
              ". Files of other weights are among them, or the number is wrong and may be taken out");
}

std::vector<std::string> HuggingFaceFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

const SafetensorsFile& HuggingFaceFolder::file_of(const std::string& name) const {
  const auto it = file_of_.find(name);
  TORCH_CHECK_INDEX(it != file_of_.end(), "[load] '", path_, "' has no tensor '", name, "', but ", file_of_.size(),
                    " others");
  return files_[it->second];
}

NamedTensors HuggingFaceFolder::tensors() const {
  NamedTensors result;
  for (const auto& [name, file] : file_of_) result.emplace(name, files_[file].tensor(name));
  return result;
}

}  // namespace dtensor
