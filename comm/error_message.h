// The text of an error, for another text or another process: without the backtrace that LibTorch adds.
#pragma once

#include <exception>
#include <string>

namespace dtensor::internal {

std::string message_of(const std::exception& error);

std::string first_line(const std::string& text);

}  // namespace dtensor::internal
