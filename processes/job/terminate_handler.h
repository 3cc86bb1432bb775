// Reports an uncaught exception that ends this process to the other ranks.
#pragma once

#include <functional>
#include <string>

namespace dtensor::internal {

// Installs a std::terminate handler, once: it calls the callbacks below with the exception's text, writes
// TORCHELASTIC_ERROR_FILE, and goes on with the handler before it. A Job does so itself.
void install_terminate_handler();
// Whether the handler was installed by a process that this one was forked from. Exceptions of the fork are no failure
// of a rank, and are not reported.
bool is_fork_of_rank() noexcept;

// `callback` may be called until remove_terminate_callback() of the same `owner`, which must come before the end of
// what it refers to. Thread-safe.
void add_terminate_callback(const void* owner, std::function<void(const std::string& message)> callback);
void remove_terminate_callback(const void* owner);

}  // namespace dtensor::internal
