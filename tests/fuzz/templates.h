// Relations between the shapes of an operator's arguments, for operators that random shapes would not satisfy.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace dtensor::fuzz {

// By argument. For tensors, a letter per dim, the same letter for the same size: "AB"; "*A": any dims before; "#V:A":
// integers below the size V; "?A": bool; "": no tensor. For lists of integers "[A]"; "2": that number; for strings
// "'ij'".
using Template = std::vector<std::pair<std::string, std::string>>;

// nullptr: any shapes may do.
const Template* template_of(const std::string& base, uint64_t choice);

}  // namespace dtensor::fuzz
