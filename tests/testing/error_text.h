// The text of a call's error.
#pragma once

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace dtensor::testing {

// Without the stack trace; "" if it throws nothing.
template <typename F>
std::string error_text(const F& f) {
  try {
    f();
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "";
}

}  // namespace dtensor::testing
