#include "checkpoint/sharded/part_file.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "checkpoint/formats/atomic_file.h"
#include "checkpoint/formats/checksums.h"
#include "dtensor/extend/representation.h"

namespace dtensor {
namespace {

constexpr char kChecksums[] = "dtensor_xxh3_64_of_1048576";
constexpr int64_t kSlabBytes = int64_t{64} << 20;  // copied at once, where a part must be copied
constexpr size_t kIdDigits = 16;

// Its values row by row, in pieces that are contiguous on the CPU: no more than a slab is copied.
void for_each_slab(const at::Tensor& values, const std::function<void(const void* data, int64_t bytes)>& use) {
  const auto element = static_cast<int64_t>(values.element_size());
  const int64_t bytes = values.numel() * element;
  if (bytes == 0) return;
  const auto put = [&](const at::Tensor& slab) {
    const at::Tensor host = slab.resolve_conj().resolve_neg().cpu().contiguous();
    use(host.const_data_ptr(), host.numel() * element);
  };
  const bool as_it_is = values.is_cpu() && values.is_contiguous() && !values.is_conj() && !values.is_neg();
  if (as_it_is || bytes <= kSlabBytes) return put(values);
  const int64_t row = bytes / values.size(0), rows = std::max<int64_t>(1, kSlabBytes / row);
  if (row > kSlabBytes) {
    for (int64_t i = 0; i < values.size(0); ++i) for_each_slab(values.select(0, i), use);
    return;
  }
  for (int64_t i = 0; i < values.size(0); i += rows) put(values.slice(0, i, std::min(i + rows, values.size(0))));
}

std::vector<SafetensorsEntry> entries_of(const std::vector<TensorPart>& parts) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorPart& p : parts) {
    SafetensorsEntry& entry = entries.emplace_back();
    entry.name = p.name;
    entry.dtype = p.values.scalar_type();
    entry.shape.assign(p.box.sizes.begin(), p.box.sizes.end());
  }
  lay_out_safetensors(entries);
  return entries;
}

std::string sharding_info(const std::vector<TensorPart>& parts) {
  nlohmann::json info = nlohmann::json::object();
  for (const TensorPart& p : parts)
    info[p.name] = {{"saved_offsets", std::vector<int64_t>(p.box.offsets.begin(), p.box.offsets.end())}};
  return info.dump();
}

void overwrite_start(const AtomicFile& file, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = pwrite(file.fd(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    TORCH_CHECK(n > 0, "'", file.path(), "' cannot be written: ", std::strerror(errno));
    done += static_cast<size_t>(n);
  }
}

}  // namespace

std::string part_file_name(const std::string& id, int64_t rank, int64_t index) {
  return absl::StrCat(id, absl::StrFormat("-rank-%05d", rank), index > 0 ? absl::StrCat("-", index) : "",
                      ".safetensors");
}

bool is_part_file_name(const std::string& name) {
  if (name.size() < kIdDigits + 6 || name.compare(kIdDigits, 6, "-rank-") != 0) return false;
  const auto hex = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) || (c >= 'a' && c <= 'f'); };
  return std::all_of(name.begin(), name.begin() + kIdDigits, hex) &&
         (absl::EndsWith(name, ".safetensors") || absl::EndsWith(name, ".unfinished"));
}

ManifestFile write_part_file(const std::string& path, const std::vector<TensorPart>& parts,
                             const std::function<void(int64_t bytes)>& written) {
  LocalGuard guard;
  std::map<std::string, const TensorPart*> by_name;
  for (const TensorPart& p : parts) by_name[p.name] = &p;
  const std::vector<SafetensorsEntry> entries = entries_of(parts);
  const int64_t data_bytes = entries.empty() ? 0 : entries.back().end;
  std::map<std::string, std::string> metadata = {
      {"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", sharding_info(parts)}};
  // The sums are known when the data is written; their text is as long whatever they are.
  metadata[kChecksums] = to_text(std::vector<uint64_t>(num_chunks(data_bytes)));
  std::string header = safetensors_header_text(entries, metadata);
  AtomicFile file(path);
  file.write(header.data(), header.size());
  ChunkSums sums;
  for (const SafetensorsEntry& entry : entries) {
    for_each_slab(by_name.at(entry.name)->values, [&](const void* data, int64_t bytes) {
      for (int64_t at = 0; at < bytes; at += kSlabBytes) {
        const int64_t n = std::min(kSlabBytes, bytes - at);
        sums.append(static_cast<const char*>(data) + at, n);
        file.write(static_cast<const char*>(data) + at, n);
        sync_file_range(file.fd(), 0, 0, SYNC_FILE_RANGE_WRITE);  // the disk begins now, not when the file is closed
        written(n);
      }
    });
  }
  metadata[kChecksums] = to_text(sums.finish());
  header = safetensors_header_text(entries, metadata);
  overwrite_start(file, header);
  file.commit();
  return {static_cast<int64_t>(header.size()) + data_bytes, checksum(header.data(), header.size())};
}

PartFile::PartFile(const std::string& path, const ManifestFile& expected) : file_(path) {
  TORCH_CHECK(static_cast<int64_t>(file_.size()) == expected.bytes, "'", path, "' has ", file_.size(),
              " bytes, it was written with ", expected.bytes);
  header_ = read_safetensors_header(file_);
  TORCH_CHECK(checksum(file_.data(), header_.data_begin) == expected.header_sum, "'", path,
              "' is damaged: the checksum of its header is not the manifest's");
  for (size_t i = 0; i < header_.entries.size(); ++i) index_[header_.entries[i].name] = i;
  const auto sums = header_.metadata.find(kChecksums);
  TORCH_CHECK(sums != header_.metadata.end(), "'", path, "' has no checksums");
  sums_ = parse_sums(sums->second, num_chunks(expected.bytes - header_.data_begin));
  verified_.resize(sums_.size());
}

const SafetensorsEntry& PartFile::entry(const std::string& name) const {
  const auto it = index_.find(name);
  TORCH_CHECK(it != index_.end(), "'", file_.path(), "' has no part of '", name, "'");
  return header_.entries[it->second];
}

at::Tensor PartFile::part(const std::string& name, const Box& box, c10::ScalarType dtype) const {
  const SafetensorsEntry& e = entry(name);
  const at::IntArrayRef sizes(box.sizes.data(), box.sizes.size());
  TORCH_CHECK(e.dtype == dtype && at::IntArrayRef(e.shape) == sizes, "'", file_.path(), "' has ", e.dtype,
              at::IntArrayRef(e.shape), " of '", name, "', the manifest says ", dtype, sizes);
  char* data = file_.data() + header_.data_begin + e.begin;
  TORCH_CHECK(reinterpret_cast<uintptr_t>(data) % c10::elementSize(dtype) == 0, "'", file_.path(), "': '", name,
              "' begins at a byte that is no multiple of its elements' size");
  const auto is_bool = [](char byte) { return byte == 0 || byte == 1; };
  TORCH_CHECK(dtype != at::kBool || std::all_of(data, data + e.bytes(), is_bool), "'", file_.path(), "' is damaged: '",
              name, "' has a bool that is neither 0 nor 1");
  return at::from_blob(data, sizes, at::TensorOptions(dtype));
}

// From its first element to its last one: what lies between is read by chunks anyway.
std::pair<int64_t, int64_t> PartFile::bytes_of(const std::string& name, const Shape& offsets,
                                               const Shape& sizes) const {
  const SafetensorsEntry& e = entry(name);
  TORCH_CHECK(e.shape.size() == sizes.size(), "'", file_.path(), "' has ", at::IntArrayRef(e.shape), " of '", name,
              "', the manifest says ", sizes.size(), " dims");
  const auto element = static_cast<int64_t>(c10::elementSize(e.dtype));
  int64_t first = 0, last = 0, stride = element;
  for (size_t d = sizes.size(); d-- > 0;) {
    TORCH_CHECK(offsets[d] + sizes[d] <= e.shape[d], "'", file_.path(), "' has ", at::IntArrayRef(e.shape), " of '",
                name, "', of which the manifest has a larger box");
    if (sizes[d] == 0) return {e.begin, e.begin};
    first += offsets[d] * stride;
    last += (offsets[d] + sizes[d] - 1) * stride;
    stride *= e.shape[d];
  }
  return {e.begin + first, e.begin + last + element};
}

void PartFile::read_ahead(const std::string& name, const Shape& offsets, const Shape& sizes) const {
  const auto [begin, end] = bytes_of(name, offsets, sizes);
  file_.read_ahead(header_.data_begin + begin, end - begin);
}

void PartFile::verify(const std::string& name, const Shape& offsets, const Shape& sizes) {
  const auto [first, last] = bytes_of(name, offsets, sizes);
  const char* data = file_.data() + header_.data_begin;
  const int64_t bytes = static_cast<int64_t>(file_.size()) - header_.data_begin;
  for (int64_t c = first / ChunkSums::kChunk; c * ChunkSums::kChunk < last; ++c) {
    if (verified_[c]) continue;
    const int64_t begin = c * ChunkSums::kChunk, n = std::min(ChunkSums::kChunk, bytes - begin);
    TORCH_CHECK(checksum(data + begin, n) == sums_[c], "'", file_.path(), "' is damaged: bytes ",
                header_.data_begin + begin, " to ", header_.data_begin + begin + n - 1, ", which hold some of '", name,
                "', have another checksum than was written");
    verified_[c] = true;
  }
}

}  // namespace dtensor
