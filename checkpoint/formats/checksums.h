// Checksums of a file's data, piece by piece, so that a reader of a part need not read all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dtensor::internal {

// Checksum of one piece of text or data (XXH3, 64 bits), in texts as 16 hexadecimal digits.
uint64_t checksum(const void* data, size_t size);
std::string checksum_text(uint64_t sum);

// Checksums of data that arrives in pieces.
class ChunkSums {
 public:
  static constexpr int64_t kChunk = int64_t{1} << 20;  // bytes

  ChunkSums();
  ~ChunkSums();
  void append(const void* data, size_t size);
  // One per chunk, the last one of what is left; none of no data. Call once, at the end.
  std::vector<uint64_t> finish();

 private:
  struct State;  // xxhash's
  std::unique_ptr<State> state_;
  std::vector<uint64_t> sums_;
  int64_t in_chunk_ = 0;
};

// How many chunks `bytes` have, and what is written of their sums: always as many characters.
int64_t num_chunks(int64_t bytes);
std::string to_text(const std::vector<uint64_t>& sums);
// Error (c10::Error): not `count` sums.
std::vector<uint64_t> parse_sums(std::string_view text, int64_t count);

}  // namespace dtensor::internal
