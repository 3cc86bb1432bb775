// Safetensors files. Every tensor's data lies in the file; a header that is written again reads as what it was.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "checkpoint/formats/safetensors_dtypes.h"
#include "checkpoint/formats/safetensors_header.h"
#include "tests/readers/reader_fuzz.h"
#include "tests/readers/safetensors_input.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = read_or_refuse([&] { return read_safetensors_header(bytes, "a.safetensors"); });
  if (!header) return 0;
  must(header->data_begin >= 8 && header->data_begin <= static_cast<int64_t>(size), "the data begins in the file");
  for (const SafetensorsEntry& e : header->entries) {
    must(e.begin >= 0 && e.begin <= e.end && e.end <= static_cast<int64_t>(size) - header->data_begin,
         "the data of a tensor lies in the file");
    must(data_bytes(e.dtype, e.shape) == e.bytes(), "a tensor has the bytes of its shape");
    touch(bytes.data() + header->data_begin + e.begin, static_cast<size_t>(e.bytes()));
  }
  std::string again = safetensors_header_text(header->entries, header->metadata);
  again += bytes.substr(static_cast<size_t>(header->data_begin));
  const SafetensorsHeader second = read_safetensors_header(again, "again.safetensors");
  const auto same = [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin && a.end == b.end;
  };
  must(second.metadata == header->metadata && std::equal(second.entries.begin(), second.entries.end(),
                                                         header->entries.begin(), header->entries.end(), same),
       "a header that is written reads as what it was");
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  return put_input(mutated_safetensors(text_of_input(data, size), max_size, seed), data, max_size);
}
