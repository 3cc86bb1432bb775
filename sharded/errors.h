// Two classes of errors that Python has and c10 does not. The others are c10's: ValueError, TypeError, IndexError,
// NotImplementedError; RuntimeError is c10::Error itself.
//
//   try { shard_parameter(*fc, "foo", spec, world); } catch (const AttributeError& e) { ... }  // no parameter `foo`
#pragma once

#include <c10/util/Exception.h>

namespace dtensor::sharded {

class AttributeError : public c10::Error {
  using Error::Error;
};

class KeyError : public c10::Error {
  using Error::Error;
};

// Throws an E with the text made of the arguments.
template <typename E, typename... Args>
[[noreturn]] void raise(const Args&... args) {
  throw E({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, c10::str(args...));
}

}  // namespace dtensor::sharded
