#include "checkpoint/formats/checksums.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace dtensor::internal {
namespace {

constexpr size_t kDigits = 16;

}  // namespace

uint64_t checksum(const void* data, size_t size) { return XXH3_64bits(data, size); }

std::string checksum_text(uint64_t sum) { return absl::StrCat(absl::Hex(sum, absl::kZeroPad16)); }

struct ChunkSums::State {
  XXH3_state_t of_chunk;
};

ChunkSums::ChunkSums() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->of_chunk); }
ChunkSums::~ChunkSums() = default;

void ChunkSums::append(const void* data, size_t size) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const size_t n = std::min<size_t>(size, kChunk - in_chunk_);
    XXH3_64bits_update(&state_->of_chunk, bytes, n);
    bytes += n;
    size -= n;
    in_chunk_ += static_cast<int64_t>(n);
    if (in_chunk_ < kChunk) continue;
    sums_.push_back(XXH3_64bits_digest(&state_->of_chunk));
    XXH3_64bits_reset(&state_->of_chunk);
    in_chunk_ = 0;
  }
}

std::vector<uint64_t> ChunkSums::finish() {
  if (in_chunk_ > 0) sums_.push_back(XXH3_64bits_digest(&state_->of_chunk));
  in_chunk_ = 0;
  return std::move(sums_);
}

int64_t num_chunks(int64_t bytes) { return bytes / ChunkSums::kChunk + (bytes % ChunkSums::kChunk > 0); }

std::string to_text(const std::vector<uint64_t>& sums) {
  std::string text;
  for (const uint64_t sum : sums) absl::StrAppend(&text, absl::Hex(sum, absl::kZeroPad16));
  return text;
}

std::vector<uint64_t> parse_sums(std::string_view text, int64_t count) {
  TORCH_CHECK(static_cast<int64_t>(text.size() / kDigits) == count && text.size() % kDigits == 0, "has checksums of ",
              text.size(), " digits where ", count, " chunks need ", count * static_cast<int64_t>(kDigits));
  std::vector<uint64_t> sums;
  for (size_t at = 0; at < text.size(); at += kDigits) {
    uint64_t& sum = sums.emplace_back();
    const std::string_view digits = text.substr(at, kDigits);
    TORCH_CHECK(absl::SimpleHexAtoi(absl::string_view(digits.data(), digits.size()), &sum), "has a checksum '",
                std::string(digits), "' that is no hexadecimal number");
  }
  return sums;
}

}  // namespace dtensor::internal
