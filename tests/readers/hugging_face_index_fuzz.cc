// Hugging Face's index. No file that it names lies in another folder.
#include "checkpoint/formats/hugging_face_index.h"
#include "tests/readers/reader_fuzz.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = text_of_input(data, size);
  is_weights_file(text);
  const auto index = read_or_refuse([&] { return parse_hugging_face_index(text, "model.safetensors.index.json"); });
  if (!index) return 0;
  for (const auto& [name, file] : index->weight_map) {
    must(!file.empty() && file != "." && file != ".." && file.find('/') == file.npos && file.find('\0') == file.npos,
         "a file of the index lies beside it");
    must(shown_name(name).find('\n') == std::string::npos, "a name is shown on one line");
  }
  must(index->total_size.value_or(0) >= 0, "a size is not negative");
  return 0;
}
