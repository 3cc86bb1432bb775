// Text output of a training run: plain numbers and communication events.
#pragma once

#include <string>
#include <vector>

#include "comm/comm_event.h"

namespace examples {

// Two curves in one field of characters: 'o' plain, 'x' mesh, '*' where they meet. Both have the same number of losses,
// at least one.
std::string chart(const std::vector<double>& plain, const std::vector<double>& mesh);

// "kind  calls  bytes", and below each kind the operators that caused it.
std::string communication_table(const std::vector<dtensor::CommEvent>& events);

}  // namespace examples
