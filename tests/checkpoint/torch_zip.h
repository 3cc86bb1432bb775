// Zip files of torch's kind with records of the test's choice.
#pragma once

#include <caffe2/serialize/inline_container.h>

#include <string>
#include <utility>
#include <vector>

namespace dtensor::testing {

struct ZipRecord {
  std::string name, bytes;
  bool compressed = false;
};

inline std::string torch_zip(const std::vector<ZipRecord>& records) {
  std::string file;
  {
    caffe2::serialize::PyTorchStreamWriter writer([&](const void* bytes, size_t n) {
      file.append(static_cast<const char*>(bytes), n);
      return n;
    });
    for (const ZipRecord& r : records) writer.writeRecord(r.name, r.bytes.data(), r.bytes.size(), r.compressed);
    writer.writeEndOfFile();
  }
  return file;
}

}  // namespace dtensor::testing
