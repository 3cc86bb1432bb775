// Files of sharded checkpoints, as a manifest names them: with the size and the checksum of the header that they have.
// A part is what the file has at its place.
#include <ATen/core/Tensor.h>

#include <cstring>

#include "checkpoint/formats/checksums.h"
#include "checkpoint/sharded/part_file.h"
#include "tests/readers/reader_fuzz.h"
#include "tests/readers/safetensors_input.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

namespace {

constexpr char kSums[] = "\"dtensor_xxh3_64_of_1048576\":\"";

void check_part(PartFile& file, const SafetensorsEntry& e, const char* data) {
  const Shape sizes(e.shape.begin(), e.shape.end()), begin(e.shape.size(), 0);
  const auto part = read_or_refuse([&] { return file.part(e.name, {begin, sizes}, e.dtype); });
  if (part) {
    must(static_cast<int64_t>(part->nbytes()) == e.bytes(), "a part has the bytes of its shape");
    must(e.bytes() == 0 || std::memcmp(part->const_data_ptr(), data + e.begin, static_cast<size_t>(e.bytes())) == 0,
         "a part is what the file has");
  }
  read_or_refuse([&] {
    file.want(e.name, begin, sizes);
    return true;
  });
  // As a manifest may say that has another shape than the file.
  Shape larger = sizes;
  larger.push_back(1);
  must(!read_or_refuse([&] {
    return file.part(e.name, {Shape(larger.size(), 0), larger}, e.dtype);
  }),
       "a part of another shape is refused");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  memory.set(data, size);
  const std::string bytes = text_of_input(data, size);
  const auto header = read_or_refuse([&] { return read_safetensors_header(bytes, "part"); });
  const size_t begin = header ? static_cast<size_t>(header->data_begin) : 0;
  const ManifestFile expected{static_cast<int64_t>(size), checksum(data, begin)};
  read_or_refuse([&] {
    PartFile file(memory.path(), expected);
    must(header.has_value(), "what is no safetensors file is no part file");
    for (const SafetensorsEntry& e : header->entries) check_part(file, e, bytes.data() + begin);
    const WantedChunks chunks({&file});
    int64_t verified = 0;
    chunks.verify([&](int64_t n) { verified += n; });
    must(verified == chunks.bytes(), "all chunks are verified");
    return true;
  });
  return 0;
}

// With the checksum of the data that it has become.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::string file = mutated_safetensors(text_of_input(data, size), max_size, seed);
  const size_t at = file.find(kSums), begin = 8 + safetensors_json(file).size();
  if (seed % 8 > 1 && at != file.npos && begin < file.size()) {
    const std::string sum = checksum_text(checksum(file.data() + begin, file.size() - begin));
    if (at + sizeof kSums - 1 + sum.size() < begin) file.replace(at + sizeof kSums - 1, sum.size(), sum);
  }
  return put_input(file, data, max_size);
}
