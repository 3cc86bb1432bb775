// Code shared by the programs here: flags, reading their values, and reporting a bad one: in one line, with exit code
// 2.
#pragma once

#include <stdexcept>
#include <string>
#include <vector>

#include "mesh/device_mesh.h"
#include "plan/spec.h"

namespace dtensor::tools {

// "--mesh dp=0: 'dp=0' is not NAME=SIZE ...": flag, value, what would work.
struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Reads the flags of `argv` into Abseil's and calls `run`. A UsageError becomes one line on stderr and the exit code 2,
// an error of the library one line and 1.
int run_program(const char* name, const char* usage, int argc, char** argv, int (*run)());

// In what follows `flag` is the flag's name, for UsageErrors.

struct MeshShape {
  std::vector<std::string> names;
  std::vector<int64_t> sizes;
  int64_t size = 1;
};
MeshShape parse_mesh(const std::string& flag, const std::string& text);              // "dp=4,tp=8"
std::vector<int64_t> parse_ranks(const std::string& flag, const std::string& text);  // "0-3,8,10"
std::vector<int64_t> parse_sizes(const std::string& flag, const std::string& text);  // "4096,4096"; "" has no dims
c10::ScalarType parse_dtype(const std::string& flag, const std::string& text);       // "bf16", "bfloat16"
int64_t parse_bytes(const std::string& flag, const std::string& text);               // "2GiB", "1.5MB", "4096"
// "S(0)R", for a mesh and a tensor of `ndim` dims.
Placements parse_layout(const std::string& flag, const std::string& text, const DeviceMesh& mesh, int64_t ndim);

// A file's name as the user meant it: relative to where `bazel run` was called.
std::string user_path(const std::string& path);
// Writes a file. `flag` gave its name.
void write_file(const std::string& flag, const std::string& path, const std::string& text);

// The first line of an error's text, without the function's name in front.
std::string first_line(const std::string& what);

// "4096 B", "1.5 MiB"
std::string human_bytes(int64_t bytes);

}  // namespace dtensor::tools
