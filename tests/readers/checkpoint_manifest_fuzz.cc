// Manifests of sharded checkpoints. Boxes tile their tensors, files lie in the folder, and a manifest that is written
// again reads as what it was.
#include <nlohmann/json.hpp>

#include "checkpoint/formats/checksums.h"
#include "checkpoint/sharded/manifest.h"
#include "tests/readers/reader_fuzz.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto manifest = read_or_refuse([&] { return parse_manifest(text_of_input(data, size)); });
  if (!manifest) return 0;
  for (const auto& [name, tensor] : manifest->tensors) {
    int64_t covered = 0, all = 1;
    for (const int64_t n : tensor.shape) all *= n;
    for (const ManifestBox& b : tensor.boxes) {
      must(manifest->files.count(b.file) == 1, "the file of a box is among the files");
      must(b.box.offsets.size() == tensor.shape.size() && b.box.sizes.size() == tensor.shape.size(),
           "a box has the dims of its tensor");
      for (size_t d = 0; d < tensor.shape.size(); ++d) {
        must(b.box.offsets[d] >= 0 && b.box.sizes[d] >= 0 && b.box.offsets[d] <= tensor.shape[d] &&
                 b.box.sizes[d] <= tensor.shape[d] - b.box.offsets[d],
             "a box lies in its tensor");
      }
      covered += b.box.numel();
    }
    must(covered == all, "the boxes have all elements of their tensor");
  }
  for (const auto& [file, about] : manifest->files) {
    must(file.find('/') == file.npos && file.find('\0') == file.npos, "a file lies in the folder");
    must(about.bytes >= 0, "a file has no negative size");
  }
  const std::string again = to_text(*manifest);
  must(to_text(parse_manifest(again)) == again, "a manifest that is written reads as what it was");
  return 0;
}

namespace {

// With the checksum of what it has become, so that what follows the comparison of checksums is reached.
std::string with_checksum(std::string text) {
  static const std::string kKey = "\"checksum\": \"";
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  const size_t at = text.find(kKey);
  if (!json.is_object() || !json.contains("checkpoint") || at == text.npos) return text;
  const std::string inner = json["checkpoint"].dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::string sum = checksum_text(checksum(inner.data(), inner.size()));
  return text.replace(at + kKey.size(), std::min(sum.size(), text.size() - at - kKey.size()), sum);
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned int seed) {
  std::string text = mutated(text_of_input(data, size), max_size);
  if (seed % 8 != 0) text = with_checksum(std::move(text));
  return put_input(text, data, max_size);
}
