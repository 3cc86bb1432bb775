// Untrusted JSON. Read, written and read again it is equal.
#include <nlohmann/json.hpp>

#include "checkpoint/formats/strict_json.h"
#include "tests/readers/reader_fuzz.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = text_of_input(data, size);
  if (const auto json = read_or_refuse([&] { return parse_strict_json(text, "a.json"); })) {
    must(parse_strict_json(json->dump(), "again.json") == *json, "JSON that is written reads as what it was");
  }
  return 0;
}
