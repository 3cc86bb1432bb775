#include "checkpoint/sharded/part_file.h"

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
#include "absl/strings/str_join.h"
#include "checkpoint/formats/atomic_file.h"
#include "checkpoint/formats/checksums.h"
#include "dtensor/tensor/representation.h"

namespace dtensor::internal {
namespace {

constexpr char kChecksums[] = "dtensor_xxh3_64_of_1048576";
constexpr int64_t kSlabBytes = int64_t{64} << 20;  // copied at once, where a part must be copied
constexpr size_t kIdDigits = 16, kMostNames = 5;
constexpr int64_t kReportBytes = int64_t{64} << 20;  // are verified between two reports

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

// The bytes, in the data of the file, from a block's first element to its last one; what lies between is read by chunks
// anyway.
std::pair<int64_t, int64_t> bytes_of(const SafetensorsEntry& e, const Shape& offsets, const Shape& sizes) {
  const auto element = static_cast<int64_t>(c10::elementSize(e.dtype));
  int64_t first = 0, last = 0, stride = element;
  for (size_t d = sizes.size(); d-- > 0;) {
    TORCH_INTERNAL_ASSERT(offsets[d] + sizes[d] <= e.shape[d]);  // part() has compared the shape with the box
    if (sizes[d] == 0) return {e.begin, e.begin};
    first += offsets[d] * stride;
    last += (offsets[d] + sizes[d] - 1) * stride;
    stride *= e.shape[d];
  }
  return {e.begin + first, e.begin + last + element};
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
  const SafetensorsHeader& header = file_.header();
  const MappedFile& all = file_.mapped();
  TORCH_CHECK(static_cast<int64_t>(all.size()) == expected.bytes, "'", path, "' has ", all.size(),
              " bytes, it was written with ", expected.bytes);
  TORCH_CHECK(checksum(all.data(), header.data_begin) == expected.header_sum, "'", path,
              "' is damaged: the checksum of its header is not the manifest's");
  const auto sums = header.metadata.find(kChecksums);
  TORCH_CHECK(sums != header.metadata.end(), "'", path, "' has no checksums");
  sums_ = parse_sums(sums->second, num_chunks(expected.bytes - header.data_begin));
  wanted_.resize(sums_.size());
  all.read_in_order();
}

at::Tensor PartFile::part(const std::string& name, const Box& box, c10::ScalarType dtype) const {
  const SafetensorsEntry& e = file_.entry(name);
  const at::IntArrayRef sizes(box.sizes.data(), box.sizes.size());
  TORCH_CHECK(e.dtype == dtype && at::IntArrayRef(e.shape) == sizes, "'", file_.path(), "' has ", e.dtype,
              at::IntArrayRef(e.shape), " of '", name, "', the manifest says ", dtype, sizes);
  return file_.tensor(name);
}

void PartFile::want(const std::string& name, const Shape& offsets, const Shape& sizes) {
  const auto [first, last] = bytes_of(file_.entry(name), offsets, sizes);
  for (int64_t c = first / ChunkSums::kChunk; c * ChunkSums::kChunk < last; ++c) wanted_[c] = true;
}

WantedChunks::WantedChunks(const std::vector<const PartFile*>& files) {
  for (const PartFile* file : files) {
    const int64_t data = file->file_.header().data_begin, end = static_cast<int64_t>(file->file_.mapped().size());
    for (size_t c = 0; c < file->wanted_.size(); ++c) {
      if (!file->wanted_[c]) continue;
      const int64_t begin = data + static_cast<int64_t>(c) * ChunkSums::kChunk;
      chunks_.push_back({file, static_cast<int64_t>(c), begin, std::min(ChunkSums::kChunk, end - begin)});
      bytes_ += chunks_.back().bytes;
    }
  }
}

void WantedChunks::verify(const std::function<void(int64_t bytes)>& verified) const {
  int64_t bytes = 0;  // since the last call of `verified`
  for (size_t k = 0; k < chunks_.size(); ++k) {
    check(chunks_[k]);
    bytes += chunks_[k].bytes;
    if (bytes >= kReportBytes || k + 1 == chunks_.size()) verified(std::exchange(bytes, 0));
  }
}

void WantedChunks::check(const Chunk& chunk) {
  const SafetensorsFile& file = chunk.file->file_;
  TORCH_CHECK(checksum(file.mapped().data() + chunk.begin, chunk.bytes) == chunk.file->sums_[chunk.index], "'",
              file.path(), "' is damaged: bytes ", chunk.begin, " to ", chunk.begin + chunk.bytes - 1,
              ", which hold some of ", tensors_in(chunk), ", have another checksum than was written");
}

std::string WantedChunks::tensors_in(const Chunk& chunk) {
  std::vector<std::string> names;
  const SafetensorsHeader& header = chunk.file->file_.header();
  const int64_t begin = chunk.begin - header.data_begin;
  for (const SafetensorsEntry& e : header.entries) {
    if (e.begin < begin + chunk.bytes && e.end > begin) names.push_back(absl::StrCat("'", e.name, "'"));
  }
  const size_t n = names.size();
  if (n > kMostNames) names.resize(kMostNames);
  return absl::StrCat(absl::StrJoin(names, ", "), n > kMostNames ? absl::StrCat(" and ", n - kMostNames, " more") : "");
}

}  // namespace dtensor::internal
