#include "checkpoint/hugging_face_names.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace dtensor {

std::string weights_file(size_t i, size_t n) {
  return n == 1 ? kSingleFile : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, n);
}

bool is_weights_file(const std::string& name) {
  if (name == kSingleFile || name == kIndexFile) return true;
  const auto digits = [](absl::string_view& text) {
    const size_t n = std::min(text.find_first_not_of("0123456789"), text.size());
    text.remove_prefix(n);
    return n >= 5;
  };
  absl::string_view rest = name;
  return absl::ConsumePrefix(&rest, "model-") && digits(rest) && absl::ConsumePrefix(&rest, "-of-") && digits(rest) &&
         rest == ".safetensors";
}

}  // namespace dtensor
