// Headers: what is read, byte by byte, and everything that is refused.
#include "checkpoint/formats/safetensors_header.h"

#include <limits>

#include "checkpoint/formats/safetensors_dtypes.h"
#include "tests/checkpoint/safetensors_files.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/child.h"

namespace dtensor {
using namespace internal;

namespace {

using c10::ScalarType;
using testing::safetensors_bytes;
using testing::TempFolder;
using testing::write_file;

SafetensorsHeader read(const std::string& bytes) {
  const TempFolder folder;
  return read_safetensors_header(MappedFile(write_file(folder / "f", bytes)));
}

std::string field(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

// That a header with `data` bytes of data behind it is refused, in these words and with the path.
void refused(const std::string& header, size_t data, const std::string& words) {
  CAPTURE(header);
  CHECK_THROWS_WITH(read(safetensors_bytes(header, std::string(data, '\0'))),
                    Catch::Contains("/f' is not a valid safetensors file") && Catch::Contains(words));
}

const std::string kFour = field("F32", "[1]", "[0,4]");  // one tensor of four bytes

}  // namespace

TEST_CASE("safetensors_header: entries are read in any order of names and fields") {
  const SafetensorsHeader h = read(safetensors_bytes(
      R"({"b":{"data_offsets":[24, 26],"shape":[],"dtype":"BF16"},"__metadata__":{"format":"pt","a\n":"\u00e4"},)"
      R"("none":{"dtype":"I64","shape":[3,0],"data_offsets":[24,24]},"a":{"dtype":"F64","shape":[1,3],"data_offsets":[0,24]}}  )",
      std::string(26, '\1')));
  REQUIRE(h.entries.size() == 3);
  CHECK(h.entries[0].name == "a");
  CHECK(h.entries[0].dtype == ScalarType::Double);
  CHECK(h.entries[0].shape == std::vector<int64_t>{1, 3});
  CHECK(h.entries[0].bytes() == 24);
  CHECK(h.entries[1].name == "none");
  CHECK(h.entries[1].shape == std::vector<int64_t>{3, 0});
  CHECK(h.entries[1].bytes() == 0);
  CHECK(h.entries[2].name == "b");
  CHECK(h.entries[2].shape.empty());
  CHECK(h.entries[2].begin == 24);
  CHECK(h.entries[2].end == 26);
  CHECK(h.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"a\n", "\u00e4"}});
  CHECK(h.data_begin % 2 == 1);

  CHECK(read(safetensors_bytes("{}", "")).entries.empty());
  CHECK(read(safetensors_bytes(R"({"__metadata__":{}})", "")).metadata.empty());
}

TEST_CASE("safetensors_header: the text of a header is read back") {
  const std::vector<SafetensorsEntry> entries{{"a", ScalarType::Half, {2, 3}},
                                              {"", ScalarType::Bool, {}},
                                              {"quotes \" \\ and \u00fc", ScalarType::ComplexFloat, {0, 5}},
                                              {"z", ScalarType::UInt64, {1}}};
  const std::map<std::string, std::string> metadata{{"format", "pt"}, {"k\n", "\""}};
  const std::string text = safetensors_header_text(entries, metadata);
  CHECK(text.size() % 8 == 0);
  const SafetensorsHeader h = read(text + std::string(12 + 1 + 8, '\0'));
  CHECK(h.metadata == metadata);
  CHECK(h.data_begin == static_cast<int64_t>(text.size()));
  REQUIRE(h.entries.size() == 4);
  const int64_t ends[] = {12, 13, 13, 21};
  for (const SafetensorsEntry& e : h.entries) {
    CAPTURE(e.name);
    const auto it = std::find_if(entries.begin(), entries.end(), [&](const auto& x) { return x.name == e.name; });
    REQUIRE(it != entries.end());
    CHECK(e.dtype == it->dtype);
    CHECK(e.shape == it->shape);
    CHECK(e.end == ends[it - entries.begin()]);
  }
}

TEST_CASE("safetensors_header: every dtype of the format that LibTorch has") {
  const std::pair<const char*, int> dtypes[] = {
      {"BOOL", 1},    {"U8", 1},      {"I8", 1},          {"U16", 2},         {"I16", 2},    {"U32", 4}, {"I32", 4},
      {"U64", 8},     {"I64", 8},     {"F16", 2},         {"BF16", 2},        {"F32", 4},    {"F64", 8}, {"C64", 8},
      {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E4M3FNUZ", 1}, {"F8_E5M2FNUZ", 1}, {"F8_E8M0", 1}};
  for (const auto& [name, size] : dtypes) {
    CAPTURE(name);
    const std::string bytes = std::to_string(size * 3);
    const SafetensorsHeader h =
        read(safetensors_bytes("{\"t\":" + field(name, "[3]", "[0," + bytes + "]") + "}", std::string(size * 3, '\0')));
    CHECK(safetensors_dtype_name(h.entries.at(0).dtype) == name);
  }
  for (const char* name : {"F4", "F6_E2M3", "F6_E3M2", "f32", "", "C128"}) {
    refused("{\"t\":" + field(name, "[2]", "[0,1]") + "}", 1,
            "tensor 't' has the dtype '" + std::string(name) + "', which LibTorch does not have. It has BOOL, U8");
  }
  CHECK_THROWS_AS(safetensors_dtype_name(ScalarType::ComplexDouble), c10::TypeError);
  CHECK_THROWS_WITH(safetensors_dtype_name(ScalarType::QInt8), Catch::Contains("no QInt8, only BOOL, U8"));
}

TEST_CASE("safetensors_header: header lengths that do not fit the file") {
  const auto fails = [](const std::string& bytes, const std::string& words) {
    CHECK_THROWS_WITH(read(bytes), Catch::Contains("/f'") && Catch::Contains(words));
  };
  fails("", "0 bytes, too few");
  fails("1234567", "7 bytes, too few");
  fails(safetensors_bytes("", ""), "does not begin with '{'");
  fails(safetensors_bytes("{}", "", 3), "said to have 3 bytes, but 2 follow");
  fails(safetensors_bytes("{}", "", INT64_MAX), "said to have 9223372036854775807 bytes");
  fails(std::string(8, '\xff') + "{}", "said to have 18446744073709551615 bytes");
  fails(std::string("PK\3\4") + std::string(100, '\0'), "said to have");  // a zip
  fails(safetensors_bytes("{\"t\":" + kFour + "}", "123"), "have 4 bytes, but 3 follow");
  fails(safetensors_bytes("{\"t\":" + kFour + "}", "12345"), "have 4 bytes, but 5 follow");
  fails(safetensors_bytes("{}", "x"), "have 0 bytes, but 1 follow");
}

TEST_CASE("safetensors_header: a header beyond the limit is rejected before it is parsed") {
  const TempFolder folder;
  const std::string path = write_file(folder / "f", safetensors_bytes("{", "", 100'000'001));
  REQUIRE(::truncate(path.c_str(), 200'000'000) == 0);  // a hole: takes no disk
  CHECK_THROWS_WITH(read_safetensors_header(MappedFile(path)), Catch::Contains("more than 100000000"));
}

TEST_CASE("safetensors_header: malformed JSON or another structure is an error") {
  refused(" {}", 0, "does not begin with '{'");
  refused("[]", 0, "does not begin with '{'");
  refused("\xef\xbb\xbf{}", 0, "does not begin with '{'");
  refused(std::string("{}\0", 3), 0, "a byte of zeros");
  refused("{}x", 0, "no JSON at byte 3");
  refused("{", 0, "no JSON");
  refused("{\"t\":" + kFour + ",}", 4, "no JSON");
  refused("{}{}", 0, "no JSON");
  refused("{/**/}", 0, "no JSON");
  refused("{\"\xff\":" + kFour + "}", 4, "no JSON");     // no UTF-8
  refused("{\"\\ud800\":" + kFour + "}", 4, "no JSON");  // half a surrogate pair
  refused("{\"t\":1}", 0, "'t' has a number where an object with dtype, shape and data_offsets must stand");
  refused("{\"t\":null}", 0, "'t' has null");
  refused("{\"t\":[]}", 0, "'t' has an array");
  refused("{\"t\":{\"dtype\":{}}}", 0, "'t' has an object where a string must stand");
  refused("{\"t\":{\"shape\":4}}", 0, "'t' has a number where an array must stand");
  refused("{\"t\":{\"shape\":[[1]]}}", 0, "'t' has an array where integers from 0 on must stand");
  refused("{\"t\":{\"shape\":[{}]}}", 0, "'t' has an object");
  refused("{\"t\":" + field("F32", "[-1]", "[0,4]") + "}", 4, "a negative number");
  refused("{\"t\":" + field("F32", "[1.0]", "[0,4]") + "}", 4, "no integer");
  refused("{\"t\":" + field("F32", "[1e0]", "[0,4]") + "}", 4, "no integer");
  refused("{\"t\":" + field("F32", "[true]", "[0,4]") + "}", 4, "a boolean");
  refused("{\"t\":" + field("F32", "[\"1\"]", "[0,4]") + "}", 4, "a string");
  refused("{\"t\":" + field("F32", "[1]", "[0]") + "}", 4, "not two numbers");
  refused("{\"t\":" + field("F32", "[1]", "[0,4,4]") + "}", 4, "not two numbers");
  refused("{\"__metadata__\":{\"a\":1}}", 0, "'__metadata__' has a number where a string must stand");
  refused("{\"__metadata__\":{\"a\":{}}}", 0, "'__metadata__' has an object where a string must stand");
  refused("{\"__metadata__\":null}", 0, "'__metadata__' has null where an object of strings must stand");
  refused("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "metadata 'a' stands there twice");
  refused("{\"__metadata__\":{},\"__metadata__\":{}}", 0, "'__metadata__' stands there twice");
  refused("{\"t\":" + kFour + ",\"t\":" + kFour + "}", 4, "'t' stands there twice");
  refused("{\"t\":" + kFour + ",\"\\u0074\":" + kFour + "}", 4, "'t' stands there twice");
  refused("{\"t\":{\"shape\":[1],\"shape\":[1]}}", 4, "tensor 't' has 'shape' twice");
  refused("{\"t\":{\"more\":1}}", 4, "unknown field 'more'");
  refused("{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "tensor 't' has no data_offsets");
  refused("{\"t\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "tensor 't' has no shape");
  refused("{\"t\":{}}", 4, "tensor 't' has no dtype");
}

TEST_CASE("safetensors_header: nesting costs nothing") {
  refused("{\"t\":" + std::string(5'000'000, '['), 0, "'t' has an array");
  refused("{\"t\":{\"shape\":" + std::string(5'000'000, '['), 0, "'t' has an array");
  std::string deep = "{";
  for (int i = 0; i < 500'000; ++i) deep += "\"t\":{";
  refused(deep, 0, "'t' has an unknown field 't'");
}

TEST_CASE("safetensors_header: numbers out of range are errors") {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return "{\"t\":" + field("F32", shape, offsets) + "}";
  };
  refused(one("[9223372036854775808]", "[0,4]"), 4, "beyond 2^63");
  refused(one("[99999999999999999999999]", "[0,4]"), 4, "no integer");
  refused(one("[9223372036854775807]", "[0,4]"), 4, "more than 2^63 bytes");
  refused(one("[4294967296,4294967296]", "[0,0]"), 0, "more than 2^63 bytes");    // 2^64 is 0 again
  refused(one("[0,4294967296,4294967296]", "[0,0]"), 0, "more than 2^63 bytes");  // its strides
  refused(one("[2305843009213693953]", "[0,4]"), 4, "more than 2^63 bytes");      // * 4 is 4 again
  refused(one("[1]", "[18446744073709551612,18446744073709551616]"), 4, "beyond 2^63");
  refused(one("[1]", "[4,0]"), 4, "its data_offsets are [4, 0]");
  refused(one("[1]", "[0,3]"), 3, "of shape [1] and dtype F32 has 4 bytes, but its data_offsets are [0, 3]");
  refused(one("[2]", "[0,4]"), 4, "has 8 bytes");
  std::string dims = "1";
  for (int i = 1; i < 64; ++i) dims += ",1";
  CHECK(read(safetensors_bytes(one("[" + dims + "]", "[0,4]"), "1234")).entries[0].shape.size() == 64);
  refused(one("[" + dims + ",1]", "[0,4]"), 4, "more than 64 dims");
}

TEST_CASE("safetensors_header: data without holes and overlaps") {
  const auto two = [](const std::string& a, const std::string& b) {
    return "{\"a\":" + field("U8", "[4]", a) + ",\"b\":" + field("U8", "[4]", b) + "}";
  };
  CHECK(read(safetensors_bytes(two("[4,8]", "[0,4]"), "12345678")).entries[0].name == "b");
  refused(two("[0,4]", "[0,4]"), 8, "tensor 'b' begins at 0, inside of what is before it, which ends at 4");
  refused(two("[0,4]", "[2,6]"), 6, "tensor 'b' begins at 2, inside");
  refused(two("[0,4]", "[5,9]"), 9, "tensor 'b' begins at 5, not at the end of what is before it, which ends at 4");
  refused(two("[1,5]", "[5,9]"), 9, "tensor 'a' begins at 1");
  refused(two("[0,4]", "[9223372036854775803,9223372036854775807]"), 8, "not at the end");
  refused("{\"a\":" + field("U8", "[0]", "[4,4]") + ",\"b\":" + field("U8", "[4]", "[0,4]") +
              ",\"c\":" + field("U8", "[0]", "[2,2]") + "}",
          4, "tensor 'c' begins at 2, inside");
}

TEST_CASE("safetensors_header: names of any length and kind are shown in errors as text") {
  refused("{\"" + std::string(10'000, 'n') + "\\u0007\":1}", 0, "'" + std::string(200, 'n') + "...' has a number");
  refused("{\"a\\u0000\\n\":1}", 0, "'a\\000\\n' has a number");
}

TEST_CASE("safetensors_header: headers that cannot be written") {
  const auto text = [](std::vector<SafetensorsEntry> entries, std::map<std::string, std::string> metadata = {}) {
    return safetensors_header_text(entries, metadata);
  };
  CHECK_THROWS_WITH(text({{"a"}, {"a"}}), Catch::Contains("two tensors are called 'a'"));
  CHECK_THROWS_WITH(text({{"__metadata__"}}), Catch::Contains("'__metadata__'"));
  CHECK_THROWS_AS(text({{"\xff"}}), c10::Error);
  CHECK_THROWS_AS(text({}, {{"a", "\xff"}}), c10::Error);
  CHECK_THROWS_WITH(text({{"t", ScalarType::Float, {INT64_MAX}}}), Catch::Contains("'t'"));
  CHECK_THROWS_WITH(text({{"t", ScalarType::Byte, {INT64_MAX}}, {"u", ScalarType::Byte, {1}}}), Catch::Contains("'u'"));
  CHECK_THROWS_WITH(text({{"t", ScalarType::Byte, {-1}}}), Catch::Contains("'t'"));
  CHECK_THROWS_WITH(text({{"t", ScalarType::Byte, std::vector<int64_t>(65, 1)}}), Catch::Contains("64 dims"));
  CHECK_THROWS_AS(text({{"t", ScalarType::ComplexDouble, {1}}}), c10::TypeError);
  CHECK_THROWS_WITH(text({}, {{"a", std::string(100'000'000, 'x')}}), Catch::Contains("more than 100000000"));
}

TEST_CASE("safetensors_header: large elements come first, so that all data is aligned") {
  std::vector<SafetensorsEntry> entries{{"b", ScalarType::Bool, {3}},
                                        {"c", ScalarType::Half, {1}},
                                        {"d", ScalarType::Double, {1}},
                                        {"a", ScalarType::Byte, {1}},
                                        {"e", ScalarType::Float, {1}}};
  lay_out_safetensors(entries);
  std::string order;
  for (const auto& e : entries) {
    order += e.name;
    CHECK(e.begin % static_cast<int64_t>(c10::elementSize(e.dtype)) == 0);
  }
  CHECK(order == "decab");
  CHECK(entries.back().end == 18);
}

}  // namespace dtensor
