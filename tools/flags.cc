#include "tools/flags.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <utility>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "placement/parse_placements.h"

namespace dtensor::tools {
using namespace internal;

namespace {

constexpr int64_t kMostRanks = int64_t{1} << 20;

// absl::ParseCommandLine ends the program with code 1 on a bad flag.
void parse_flags(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg.rfind("--", 0) != 0) throw UsageError(absl::StrCat("'", arg, "' is not a flag; --help lists them"));
    const std::pair<std::string, std::string> parts = absl::StrSplit(arg.substr(2), absl::MaxSplits('=', 1));
    const auto& [name, after_equals] = parts;
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
    if (flag == nullptr) throw UsageError(absl::StrCat("unknown flag --", name, "; --help lists them"));
    std::string value = after_equals;
    if (arg.find('=') == std::string::npos) {
      if (flag->IsOfType<bool>()) {
        value = "true";
      } else if (i + 1 < argc) {
        value = argv[++i];
      } else {
        throw UsageError(absl::StrCat("--", name, " needs a value: ", flag->Help()));
      }
    }
    std::string error;
    if (!flag->ParseFrom(value, &error)) {
      throw UsageError(absl::StrCat("--", name, " ", value, ": ", error.empty() ? "not a value of its type" : error,
                                    "; it is: ", flag->Help()));
    }
  }
}

[[noreturn]] void refuse(const std::string& flag, const std::string& text, const std::string& why) {
  throw UsageError(absl::StrCat("--", flag, " ", text.empty() ? "''" : text, ": ", why));
}

}  // namespace

int run_program(const char* name, const char* usage, int argc, char** argv, int (*run)()) {
  absl::SetProgramUsageMessage(usage);
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]) == "--help") absl::ParseCommandLine(argc, argv);  // prints and ends
    }
    parse_flags(argc, argv);
    return run();
  } catch (const UsageError& e) {
    std::cerr << name << ": " << e.what() << "\n";
    return 2;
  } catch (const c10::Error& e) {
    std::cerr << name << ": " << first_line(e.what_without_backtrace()) << "\n";
    return 1;
  }
}

MeshShape parse_mesh(const std::string& flag, const std::string& text) {
  MeshShape mesh;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<std::string, std::string> kv = absl::StrSplit(part, absl::MaxSplits('=', 1));
    int64_t size = 0;
    if (kv.first.empty() || !absl::SimpleAtoi(kv.second, &size) || size < 1) {
      refuse(flag, text, absl::StrCat("'", part, "' is not NAME=SIZE with a size of at least 1, such as dp=4,tp=8"));
    }
    if (std::count(mesh.names.begin(), mesh.names.end(), kv.first)) {
      refuse(flag, text,
             absl::StrCat("the name '", kv.first, "' occurs twice; give every dim its own, such as dp=4,tp=8"));
    }
    if (size > kMostRanks / mesh.size)
      refuse(flag, text, absl::StrCat("too many ranks; up to ", kMostRanks, " are possible"));
    mesh.names.push_back(kv.first);
    mesh.sizes.push_back(size);
    mesh.size *= size;
  }
  return mesh;
}

std::vector<int64_t> parse_ranks(const std::string& flag, const std::string& text) {
  std::vector<int64_t> ranks;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    int64_t first = 0, last = 0;
    const bool good =
        ends.size() <= 2 && absl::SimpleAtoi(ends.front(), &first) && absl::SimpleAtoi(ends.back(), &last);
    if (!good || first > last || last >= kMostRanks) {
      refuse(flag, text, absl::StrCat("'", part, "' is neither a rank nor a range, such as 0-7 or 0,2,8-11"));
    }
    if (static_cast<int64_t>(ranks.size()) + last - first >= kMostRanks) {
      refuse(flag, text, absl::StrCat("too many ranks; up to ", kMostRanks, " are possible"));
    }
    for (int64_t rank = first; rank <= last; ++rank) ranks.push_back(rank);
  }
  std::vector<int64_t> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end())
    refuse(flag, text, absl::StrCat("rank ", *twice, " occurs twice; a rank has one place in a mesh"));
  return ranks;
}

std::vector<int64_t> parse_sizes(const std::string& flag, const std::string& text) {
  std::vector<int64_t> sizes;
  if (text.empty()) return sizes;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    int64_t size = 0;
    if (!absl::SimpleAtoi(part, &size) || size < 0 || size > int64_t{1} << 40) {
      refuse(
          flag, text,
          absl::StrCat("'", part, "' is not a size; give whole numbers with commas between them, such as 4096,4096"));
    }
    sizes.push_back(size);
  }
  double numel = 1;
  for (int64_t size : sizes) numel *= static_cast<double>(size);
  if (numel > std::ldexp(1, 56)) refuse(flag, text, "too many elements; up to 2^56 are possible");
  return sizes;
}

c10::ScalarType parse_dtype(const std::string& flag, const std::string& text) {
  static const std::pair<const char*, c10::ScalarType> known[] = {{"float32", at::kFloat},
                                                                  {"float64", at::kDouble},
                                                                  {"bfloat16", at::kBFloat16},
                                                                  {"float16", at::kHalf},
                                                                  {"int64", at::kLong},
                                                                  {"int32", at::kInt},
                                                                  {"int16", at::kShort},
                                                                  {"int8", at::kChar},
                                                                  {"uint8", at::kByte},
                                                                  {"bool", at::kBool},
                                                                  {"complex64", at::kComplexFloat},
                                                                  {"float8_e4m3fn", at::kFloat8_e4m3fn}};
  std::string names;
  for (const auto& [name, dtype] : known) {
    if (text == name || text == short_name(dtype)) return dtype;
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(short_name(dtype)));
  }
  refuse(flag, text, absl::StrCat("no such dtype; known are ", names, ", and their names in torch, such as bfloat16"));
}

int64_t parse_bytes(const std::string& flag, const std::string& text) {
  const size_t end = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string unit(absl::StripAsciiWhitespace(absl::string_view(text).substr(end)));
  static const std::pair<const char*, double> units[] = {
      {"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30},
      {"TiB", 0x1p40}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12}};
  const auto* it = std::find_if(std::begin(units), std::end(units), [&](const auto& u) { return u.first == unit; });
  double value = 0;
  if (it == std::end(units) || !absl::SimpleAtod(text.substr(0, end), &value) || value * it->second < 1 ||
      value * it->second > 0x1p62) {
    refuse(flag, text, "not a number of bytes; give one such as 2GiB, 500MB or 4096");
  }
  return static_cast<int64_t>(value * it->second);
}

Placements parse_layout(const std::string& flag, const std::string& text, const DeviceMesh& mesh, int64_t ndim) {
  auto placements = parse_placements(text);
  if (!placements.ok()) refuse(flag, text, std::string(placements.status().message()));
  if (static_cast<int64_t>(placements->size()) != mesh.ndim()) {
    refuse(flag, text,
           absl::StrCat(placements->size(), placements->size() == 1 ? " placement" : " placements", ", but ",
                        mesh.to_string(), " has ", mesh.ndim(), mesh.ndim() == 1 ? " dim" : " dims",
                        "; give one placement per mesh dim, such as ",
                        to_string(Placements(static_cast<size_t>(mesh.ndim()), Replicate()))));
  }
  auto normal = normalize_placements(*placements, ndim);
  if (!normal.ok()) refuse(flag, text, std::string(normal.status().message()));
  return *std::move(normal);
}

std::string user_path(const std::string& path) {
  const char* dir = std::getenv("BUILD_WORKING_DIRECTORY");
  const std::filesystem::path p(path);
  return dir != nullptr && p.is_relative() ? (std::filesystem::path(dir) / p).string() : path;
}

void write_file(const std::string& flag, const std::string& path, const std::string& text) {
  std::ofstream out(user_path(path), std::ios::binary);
  if (!(out << text << std::flush)) refuse(flag, path, "cannot be written; give a file in a folder that exists");
}

std::string first_line(const std::string& what) {
  std::string line = what.substr(0, what.find('\n'));
  const size_t end = line.find("] ");
  if (line.rfind("[", 0) == 0 && end != std::string::npos) line = line.substr(end + 2);
  return line;
}

std::string human_bytes(int64_t bytes) {
  static const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 5) value /= 1024, ++unit;
  const int digits = unit == 0 || value == std::floor(value) ? 0 : 1;
  return absl::StrFormat("%.*f %s", digits, value, units[unit]);
}

}  // namespace dtensor::tools
