// What the other ranks learn when an uncaught exception ends this process.
#pragma once

#include <exception>
#include <functional>
#include <string>

namespace dtensor {

// Installs a std::terminate handler, once: it calls every `tell` below with the exception's text, writes
// TORCHELASTIC_ERROR_FILE, and goes on with the handler before it. A Job does so itself.
void tell_others_on_terminate();

// `tell` is called until forget_on_terminate() of the same `owner`, which must come before what it refers to ends.
// Thread-safe.
void tell_on_terminate(const void* owner, std::function<void(const std::string& message)> tell);
void forget_on_terminate(const void* owner);

// The text of an exception, without the backtrace that LibTorch adds.
std::string message_of(const std::exception& e);

}  // namespace dtensor
