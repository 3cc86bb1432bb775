// Values of flags of the programs in tools/. The first byte chooses the flag's kind.
#include "tests/readers/reader_fuzz.h"
#include "tools/flags.h"

using namespace dtensor;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string text = text_of_input(data + 1, size - 1);
  read_or_refuse<tools::UsageError>([&] {
    switch (data[0] % 5) {
      case 0: {
        int64_t product = 1;
        for (const int64_t n : tools::parse_mesh("mesh", text).sizes) product *= n;
        must(product >= 1 && product <= int64_t{1} << 20, "a mesh has a bounded number of ranks");
        break;
      }
      case 1:
        must(tools::parse_ranks("ranks", text).size() <= size_t{1} << 20, "there is a bounded number of ranks");
        break;
      case 2:
        for (const int64_t n : tools::parse_sizes("shape", text)) must(n >= 0, "a size is not negative");
        break;
      case 3:
        tools::parse_dtype("dtype", text);
        break;
      default:
        must(tools::parse_bytes("max_bytes", text) > 0, "a number of bytes is positive");
    }
    return true;
  });
  return 0;
}
