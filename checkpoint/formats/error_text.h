// What an error says, for another text or another process: without the place in the source that it came from. Internal.
#pragma once

#include <exception>
#include <string>

namespace dtensor {

std::string text_of(const std::exception& error);

}  // namespace dtensor
