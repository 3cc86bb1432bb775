// Calls that the library deliberately rejects, or computes differently, as documented.
#pragma once

#include <string>
#include <vector>

namespace dtensor::fuzz {

struct Refusal {
  const char* text;    // part of the error
  const char* reason;  // the reason, for the summary
};

const std::vector<Refusal>& refusals();

// nullptr: not a documented refusal.
const Refusal* reason_to_refuse(const std::string& op, const std::string& error);

}  // namespace dtensor::fuzz
