#include "checkpoint/formats/safetensors_header.h"

#include <c10/util/Exception.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "checkpoint/formats/safetensors_dtypes.h"

namespace dtensor {
using namespace internal;

namespace {

static_assert(std::endian::native == std::endian::little, "data is mapped as it stands in the file");

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxDims = 64;                  // ATen's kernels have no more
constexpr const char* kMetadata = "__metadata__";

// An untrusted name from a file: of any length, with any characters.
std::string shown(const std::string& name) {
  constexpr size_t kMax = 200;
  return absl::StrCat("'", absl::Utf8SafeCEscape(name.substr(0, kMax)), name.size() > kMax ? "...'" : "'");
}

// Takes the header as it is parsed. So a name that stands there twice is seen, and what is no header is refused at its
// first wrong token: no tree of it is built.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderReader(const std::string& path, SafetensorsHeader& header) : path_(path), header_(header) {}

  template <typename... Args>
  [[noreturn]] void fail(const Args&... args) const {
    TORCH_CHECK(false, "[load] '", path_, "' is not a valid safetensors file: ", absl::StrCat(args...));
  }

  bool start_object(size_t) override {
    if (at_ == At::kBeginning) return go(At::kNames);
    if (at_ == At::kName) return go(name_ == kMetadata ? At::kMetadataKeys : At::kFields);
    unexpected("an object");
  }

  bool key(string_t& key) override {
    if (at_ == At::kNames) {
      if (!names_.insert(key).second) fail(shown(key), " stands there twice");
      name_ = key;
      dtype_.reset();
      shape_.reset();
      offsets_.reset();
      return go(At::kName);
    }
    if (at_ == At::kMetadataKeys) {
      if (header_.metadata.count(key) != 0) fail("metadata ", shown(key), " stands there twice");
      field_ = key;
      return go(At::kMetadataValue);
    }
    const bool twice = (key == "dtype" && dtype_) || (key == "shape" && shape_) || (key == "data_offsets" && offsets_);
    if (twice) fail("tensor ", shown(name_), " has '", key, "' twice");
    if (key == "dtype") return go(At::kDtype);
    if (key == "shape") return go(At::kShape);
    if (key == "data_offsets") return go(At::kOffsets);
    fail("tensor ", shown(name_), " has an unknown field ", shown(key), ", not dtype, shape or data_offsets");
  }

  bool string(string_t& value) override {
    if (at_ == At::kMetadataValue) {
      header_.metadata.emplace(field_, value);
      return go(At::kMetadataKeys);
    }
    if (at_ != At::kDtype) unexpected("a string");
    dtype_ = safetensors_dtype_of(value);
    if (!dtype_) {
      fail("tensor ", shown(name_), " has the dtype ", shown(value), ", which LibTorch does not have. It has ",
           safetensors_dtype_names());
    }
    return go(At::kFields);
  }

  bool start_array(size_t) override {
    if (at_ != At::kShape && at_ != At::kOffsets) unexpected("an array");
    (at_ == At::kShape ? shape_ : offsets_).emplace();
    return go(at_ == At::kShape ? At::kShapeNumbers : At::kOffsetNumbers);
  }

  bool number_unsigned(number_unsigned_t n) override {
    if (at_ != At::kShapeNumbers && at_ != At::kOffsetNumbers) unexpected("a number");
    if (n > static_cast<uint64_t>(INT64_MAX)) fail("tensor ", shown(name_), " has a number beyond 2^63, ", n);
    std::vector<int64_t>& numbers = at_ == At::kShapeNumbers ? *shape_ : *offsets_;
    if (at_ == At::kShapeNumbers && numbers.size() == kMaxDims) {
      fail("tensor ", shown(name_), " has more than ", kMaxDims, " dims");
    }
    if (at_ == At::kOffsetNumbers && numbers.size() == 2) wrong_offsets();
    numbers.push_back(static_cast<int64_t>(n));
    return true;
  }

  bool end_array() override {
    if (at_ == At::kOffsetNumbers && offsets_->size() != 2) wrong_offsets();
    return go(At::kFields);
  }

  bool end_object() override {
    if (at_ == At::kNames) return go(At::kEnd);
    if (at_ == At::kFields) finish_entry();
    return go(At::kNames);
  }

  bool null() override { unexpected("null"); }
  bool boolean(bool) override { unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t&) override { unexpected("a number that is no integer"); }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail("its header is no JSON at byte ", position);
  }

 private:
  // The expected next token.
  enum class At {
    kBeginning,
    kNames,
    kName,
    kMetadataKeys,
    kMetadataValue,
    kFields,
    kDtype,
    kShape,
    kShapeNumbers,
    kOffsets,
    kOffsetNumbers,
    kEnd,
  };

  bool go(At at) {
    at_ = at;
    return true;
  }

  [[noreturn]] void unexpected(const char* what) const {
    const auto wanted = [&]() -> const char* {
      switch (at_) {
        case At::kName:
          return name_ == kMetadata ? "an object of strings" : "an object with dtype, shape and data_offsets";
        case At::kMetadataValue:
        case At::kDtype:
          return "a string";
        case At::kShape:
        case At::kOffsets:
          return "an array";
        case At::kShapeNumbers:
        case At::kOffsetNumbers:
          return "integers from 0 on";
        default:
          return "an object";
      }
    };
    fail(names_.empty() ? "the header" : shown(name_), " has ", what, " where ", wanted(), " must stand");
  }

  [[noreturn]] void wrong_offsets() const {
    fail("tensor ", shown(name_), " has data_offsets that are not two numbers");
  }

  void finish_entry() {
    const char* lacks = !dtype_ ? "dtype" : !shape_ ? "shape" : !offsets_ ? "data_offsets" : nullptr;
    if (lacks != nullptr) fail("tensor ", shown(name_), " has no ", lacks);
    const int64_t begin = (*offsets_)[0], end = (*offsets_)[1];
    const std::optional<int64_t> bytes = data_bytes(*dtype_, *shape_);
    const std::string shape = absl::StrCat("[", absl::StrJoin(*shape_, ", "), "]");
    if (!bytes) fail("tensor ", shown(name_), " of shape ", shape, " has more than 2^63 bytes");
    if (begin > end || end - begin != *bytes) {
      fail("tensor ", shown(name_), " of shape ", shape, " and dtype ", safetensors_dtype_name(*dtype_), " has ",
           *bytes, " bytes, but its data_offsets are [", begin, ", ", end, "]");
    }
    header_.entries.push_back({name_, *dtype_, std::move(*shape_), begin, end});
  }

  const std::string& path_;
  SafetensorsHeader& header_;
  At at_ = At::kBeginning;
  absl::flat_hash_set<std::string> names_;
  std::string name_, field_;
  std::optional<c10::ScalarType> dtype_;
  std::optional<std::vector<int64_t>> shape_, offsets_;
};

// Data lies end to end, from the header to the end of the file.
void check_data(const HeaderReader& reader, SafetensorsHeader& header, int64_t file_bytes) {
  std::vector<SafetensorsEntry>& entries = header.entries;
  std::stable_sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t at = 0;
  for (const SafetensorsEntry& e : entries) {
    if (e.begin != at) {
      reader.fail("the data of tensor ", shown(e.name), " begins at ", e.begin,
                  e.begin < at ? ", inside" : ", not at the end", " of what is before it, which ends at ", at);
    }
    at = e.end;
  }
  if (at != file_bytes - header.data_begin) {
    reader.fail("its tensors have ", at, " bytes, but ", file_bytes - header.data_begin,
                " follow the header: it was cut off, or something was appended");
  }
}

void place(std::vector<SafetensorsEntry>& entries) {
  int64_t at = 0;
  for (SafetensorsEntry& e : entries) {
    const std::optional<int64_t> bytes = data_bytes(e.dtype, e.shape);
    e.begin = at;
    TORCH_CHECK_VALUE(bytes && !c10::add_overflows(at, *bytes, &at) && e.shape.size() <= kMaxDims, "[save] tensor ",
                      shown(e.name), " has more than ", kMaxDims, " dims, or the data has more than 2^63 bytes");
    e.end = at;
  }
}

}  // namespace

SafetensorsHeader read_safetensors_header(const MappedFile& file) {
  return read_safetensors_header({file.data(), file.size()}, file.path());
}

SafetensorsHeader read_safetensors_header(std::string_view file, const std::string& path) {
  SafetensorsHeader header;
  HeaderReader reader(path, header);
  uint64_t n = 0;
  if (file.size() < kLengthBytes) reader.fail("it has ", file.size(), " bytes, too few for a header");
  std::memcpy(&n, file.data(), kLengthBytes);
  if (n > file.size() - kLengthBytes) {
    reader.fail("its header is said to have ", n, " bytes, but ", file.size() - kLengthBytes, " follow");
  }
  if (n > kMaxHeaderBytes) reader.fail("its header has ", n, " bytes, more than ", kMaxHeaderBytes);
  const std::string_view text(file.data() + kLengthBytes, n);
  if (text.empty() || text.front() != '{') reader.fail("its header does not begin with '{'");
  // The parser would take it for the end.
  if (text.find('\0') != text.npos) reader.fail("its header has a byte of zeros");
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  header.data_begin = static_cast<int64_t>(kLengthBytes + n);
  check_data(reader, header, static_cast<int64_t>(file.size()));
  return header;
}

namespace internal {

std::string safetensors_header_text(const std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata) try {
  const auto json = [](const std::string& text) { return nlohmann::json(text).dump(); };
  std::string text(kLengthBytes, '\0');
  absl::StrAppend(&text, "{");
  const char* comma = "";
  if (!metadata.empty()) {
    absl::StrAppend(&text, "\"", kMetadata, "\":", nlohmann::json(metadata).dump());
    comma = ",";
  }
  std::vector<SafetensorsEntry> placed = entries;
  place(placed);
  absl::flat_hash_set<std::string_view> names;
  for (const SafetensorsEntry& e : placed) {
    TORCH_CHECK(names.insert(e.name).second, "[save] two tensors are called ", shown(e.name));
    TORCH_CHECK(e.name != kMetadata, "[save] safetensors files have no tensor ", shown(e.name),
                ": it is the metadata's");
    absl::StrAppend(&text, comma, json(e.name), ":{\"dtype\":\"", safetensors_dtype_name(e.dtype), "\",\"shape\":[",
                    absl::StrJoin(e.shape, ","), "],\"data_offsets\":[", e.begin, ",", e.end, "]}");
    comma = ",";
  }
  absl::StrAppend(&text, "}");
  text.append((kLengthBytes - text.size() % kLengthBytes) % kLengthBytes, ' ');
  const uint64_t n = text.size() - kLengthBytes;
  TORCH_CHECK(n <= kMaxHeaderBytes, "[save] the header of a safetensors file would have ", n, " bytes, more than ",
              kMaxHeaderBytes, ": put the tensors into several files");
  std::memcpy(text.data(), &n, kLengthBytes);
  return text;
} catch (const nlohmann::json::exception&) {
  TORCH_CHECK(false, "[save] names and metadata of safetensors files are text in UTF-8");
}

void lay_out_safetensors(std::vector<SafetensorsEntry>& entries) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    const size_t x = c10::elementSize(a.dtype), y = c10::elementSize(b.dtype);
    return x != y ? x > y : a.name < b.name;
  });
  place(entries);
}

}  // namespace internal

}  // namespace dtensor
