// What the library refuses on purpose, or does otherwise, as its documentation says.
#pragma once

#include <string>
#include <vector>

namespace dtensor::fuzz {

struct Refusal {
  const char* text;    // part of the error
  const char* reason;  // why that is right, for the summary
};

const std::vector<Refusal>& refusals();

// nullptr: that is no documented refusal.
const Refusal* reason_to_refuse(const std::string& op, const std::string& error);

}  // namespace dtensor::fuzz
