#include <c10/util/Exception.h>
#include <c10/util/error.h>
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/cleanup/cleanup.h"
#include "checkpoint/formats/atomic_file.h"
#include "checkpoint/formats/hugging_face_index.h"
#include "checkpoint/hugging_face.h"
#include "checkpoint/safetensors_writer.h"

namespace dtensor {
using namespace internal;

namespace {

using Entries = std::vector<SafetensorsEntry>;

// Consecutive tensors to a file, as many as fit.
std::vector<Entries> split(const Entries& entries, int64_t max_bytes) {
  std::vector<Entries> files(1);
  int64_t bytes = 0;
  for (const SafetensorsEntry& e : entries) {
    if (!files.back().empty() && e.bytes() > max_bytes - bytes) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(e);
    bytes += e.bytes();
  }
  for (Entries& file : files) lay_out_safetensors(file);
  return files;
}

std::string index_text(const std::vector<Entries>& files) {
  nlohmann::json weight_map = nlohmann::json::object();
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    for (const SafetensorsEntry& e : files[i]) {
      weight_map[e.name] = weights_file(i, files.size());
      bytes += e.bytes();
    }
  }
  return nlohmann::json{{"metadata", {{"total_size", bytes}}}, {"weight_map", weight_map}}.dump(2) + "\n";
}

[[noreturn]] void fail(const std::string& path, const char* what, int error) {
  TORCH_CHECK(false, "[save] '", path, "' ", what, ": ", c10::utils::str_error(error));
}

void make_single_folder(const std::string& folder) {
  if (::mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) fail(folder, "cannot be made", errno);
}

// Removes weights in `folder` except the files called `keep`, for good.
void remove_weights(const std::string& folder, const std::set<std::string>& keep) {
  DIR* dir = ::opendir(folder.c_str());
  if (dir == nullptr) fail(folder, "cannot be read", errno);
  const absl::Cleanup close = [dir] { ::closedir(dir); };
  while (const dirent* entry = ::readdir(dir)) {
    const std::string name = entry->d_name;
    if (!is_weights_file(name) || keep.count(name) != 0) continue;
    if (::unlinkat(::dirfd(dir), name.c_str(), 0) != 0 && errno != ENOENT)
      fail(folder + "/" + name, "cannot be removed", errno);
  }
  ::fsync(::dirfd(dir));
}

// `files`, in the order in which they are to be there, take the place of all weights in `folder`.
void replace_weights(const std::string& folder, std::deque<AtomicFile>& files, size_t parts) {
  // The renaming below is short when nothing is left to be written.
  for (AtomicFile& file : files) {
    if (::fsync(file.fd()) != 0) fail(file.path(), "cannot be written", errno);
  }
  // Without the single file and the index a folder has no weights, until all of them are new.
  std::set<std::string> keep;
  for (size_t i = 0; parts > 1 && i < parts; ++i) keep.insert(weights_file(i, parts));
  remove_weights(folder, keep);
  for (AtomicFile& file : files) file.commit();
}

}  // namespace

void save_hugging_face(const NamedTensors& tensors, const std::string& folder, int64_t max_file_bytes,
                       const std::map<std::string, std::string>& metadata) {
  TORCH_CHECK_VALUE(max_file_bytes >= 1, "[save] max_file_bytes is ", max_file_bytes,
                    ", and a file takes at least 1 byte");
  const std::vector<Entries> parts = split(safetensors_entries(tensors), max_file_bytes);
  for (const Entries& part : parts) safetensors_header_text(part, metadata);  // before anything is gathered
  WholeValues values(tensors);
  const OnWriter on_writer(tensors);
  std::deque<AtomicFile> files;  // in the process that writes
  on_writer([&] { make_single_folder(folder); });
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto open = [&]() -> AtomicFile& { return files.emplace_back(folder + "/" + weights_file(i, parts.size())); };
    write_safetensors(open, parts[i], metadata, values, on_writer);
  }
  on_writer([&] {
    if (parts.size() > 1) {
      const std::string index = index_text(parts);
      files.emplace_back(folder + "/" + kIndexFile).write(index.data(), index.size());
    }
    replace_weights(folder, files, parts.size());
  });
}

}  // namespace dtensor
