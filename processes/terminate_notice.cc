#include "processes/terminate_notice.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <vector>

#include "processes/error_file.h"
#include "processes/job.h"

namespace dtensor {
namespace {

// A terminate handler has no arguments. Never destroyed: a thread may end after main.
std::mutex& jobs_mutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}
std::vector<Job*>& live_jobs() {
  static auto* jobs = new std::vector<Job*>;
  return *jobs;
}

std::terminate_handler next_handler = nullptr;

void on_terminate() {
  std::string message = "std::terminate was called";
  if (const auto current = std::current_exception()) {
    try {
      std::rethrow_exception(current);
    } catch (const std::exception& e) {
      message = message_of(e);
    } catch (...) {
      message = "an exception of unknown type";
    }
  }
  {
    std::unique_lock lock(jobs_mutex(), std::try_to_lock);
    if (lock.owns_lock()) {
      for (Job* job : live_jobs()) job->fail(message);
    }
  }
  if (const char* file = std::getenv("TORCHELASTIC_ERROR_FILE"); file != nullptr) write_error_file(file, message);
  if (next_handler != nullptr) next_handler();
  std::abort();
}

}  // namespace

std::string message_of(const std::exception& e) {
  const auto* error = dynamic_cast<const c10::Error*>(&e);
  return error != nullptr ? error->what_without_backtrace() : e.what();
}

void tell_others_on_terminate() {
  static std::once_flag once;
  std::call_once(once, [] { next_handler = std::set_terminate(on_terminate); });
}

void tell_on_terminate(Job& job) {
  std::lock_guard lock(jobs_mutex());
  live_jobs().push_back(&job);
}

void do_not_tell(Job& job) {
  std::lock_guard lock(jobs_mutex());
  auto& jobs = live_jobs();
  jobs.erase(std::remove(jobs.begin(), jobs.end(), &job), jobs.end());
}

}  // namespace dtensor
