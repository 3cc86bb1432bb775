#include "comm/error_message.h"

#include <c10/util/Exception.h>

namespace dtensor::internal {

std::string message_of(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  return ours == nullptr ? error.what() : ours->what_without_backtrace();
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace dtensor::internal
