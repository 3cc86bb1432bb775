// Zip files. All records together are no larger than the file, and each of them can be read.
#include "checkpoint/formats/zip_file.h"
#include "tests/readers/reader_fuzz.h"
#include "tests/readers/zip_input.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static MemoryFile file;
  file.set(data, size);
  read_or_refuse([&] {
    const ZipFile zip(file.path());
    uint64_t total = 0;
    for (const std::string& name : zip_names(text_of_input(data, size))) {
      if (!zip.has(name)) continue;
      read_or_refuse([&] {
        const uint64_t bytes = zip.size(name);
        must(bytes <= size, "a record is no larger than the file");
        const std::string text = zip.read_text(name, bytes);
        must(text.size() == bytes, "a record has its size");
        total += bytes;
        return true;
      });
    }
    must(total <= size, "records are together no larger than the file");
    return true;
  });
  return 0;
}
