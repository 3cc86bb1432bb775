// What the other ranks learn when an uncaught exception ends this process.
#pragma once

#include <exception>
#include <string>

namespace dtensor {

class Job;

// Installs a std::terminate handler, once: it fails every job below with the exception's text, writes
// TORCHELASTIC_ERROR_FILE, and goes on with the handler before it. A Job does so itself.
void tell_others_on_terminate();

// The jobs to tell. A job that was added must be removed before it ends. Thread-safe.
void tell_on_terminate(Job& job);
void do_not_tell(Job& job);

// The text of an exception, without the backtrace that LibTorch adds.
std::string message_of(const std::exception& e);

}  // namespace dtensor
