// A job that goes wrong: fault_program FAULT [RANK [CALL [STEPS]]]. RANK (1) does what FAULT says at its collective
// CALL (5) of STEPS (8); what the others report is what faults_test.sh looks at. Every rank ends with 0 only if nothing
// went wrong. Words besides those of fault_kind(): "late", slow, but within the deadline; "stuck", slower than anybody
// waits; "leave", the rank's program ends as if it were done. "fault_program listen" is another program that listens at
// a port, and says nothing to who comes. FAULT_STORE=remove or lock: the rank also does that to the store's file.
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "processes/launch/launch_env.h"
#include "tests/processes/fault_steps.h"
#include "tests/testing/faulty_communicator.h"

namespace dtensor::testing {
namespace {

int listen_at_a_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(fd, 16) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("listen");
    return 1;
  }
  std::printf("%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  ::sleep(300);  // it is ended before
  return 0;
}

// What FAULT_STORE says is done to the file at which the ranks meet, when the fault fires: "remove" it, or "lock" it
// until this process ends.
void spoil_store() {
  const char* how = std::getenv("FAULT_STORE");
  const char* store = std::getenv("DTENSOR_STORE");
  if (how == nullptr || store == nullptr) return;
  const std::string path = std::string(store).substr(std::string("file://").size());
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  const bool done = how == std::string("remove") ? ::unlink(path.c_str()) == 0 : ::flock(fd, LOCK_EX) == 0;
  std::fprintf(stderr, "%s: the store\'s file: %s\n", done ? "done" : "NOT DONE", how);
}

int run(const std::string& word, int64_t faulty_rank, int64_t call, int64_t steps) {
  const World job = World::from_env();
  const bool faulty = job.owned_ranks()[0] == faulty_rank;
  const auto say = [&] {
    spoil_store();
    std::fprintf(stderr, "fault fires: %s\n", word.c_str());
  };
  Fault fault;
  fault.call = call;
  fault.on_fire = say;
  if (word == "late" || word == "stuck" || word == "slow") {
    fault.kind = Fault::Kind::kSlow;
    fault.delay = std::chrono::seconds(word == "late" ? 1 : word == "slow" ? 8 : 60);
  } else if (word != "leave") {
    const auto kind = fault_kind(word);
    TORCH_CHECK_VALUE(kind, "fault_program: FAULT is '", word,
                      "'; expected a word of fault_kind(), late, stuck or leave");
    fault.kind = *kind;
  }
  const FaultSteps job_steps(faulty ? faulty_world(job, fault) : job);
  bool right = true;
  for (int64_t k = 1; k <= steps; ++k) {
    if (word == "leave" && faulty && k == call) {
      say();
      return 0;
    }
    right &= job_steps.run(k);
  }
  // A result that is wrong is the worst that can happen: nobody would know.
  if (!right) {
    std::fprintf(stderr, "WRONG RESULT\n");
    return 3;
  }
  std::printf("fine\n");
  return 0;
}

}  // namespace
}  // namespace dtensor::testing

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) { return argc > i ? std::atoll(argv[i]) : otherwise; };
  const std::string word = argc > 1 ? argv[1] : "none";
  if (word == "listen") return dtensor::testing::listen_at_a_port();
  try {
    return dtensor::testing::run(word, number(2, 1), number(3, 5), number(4, 8));
  } catch (const c10::Error& e) {
    std::fprintf(stderr, "error: %s\n", e.what_without_backtrace());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
  }
  return 1;
}
