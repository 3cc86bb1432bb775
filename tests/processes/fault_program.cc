// A job that goes wrong: fault_program FAULT [RANK [CALL [STEPS]]]. RANK (1) does what FAULT says at its collective
// CALL (5) of STEPS (8); what the others report is what faults_test.sh looks at. Every rank ends with 0 only if nothing
// went wrong. Words besides those of fault_kind(): "late", slow, but within the deadline; "stuck", slower than any
// rank waits; "leave", the rank's program ends as if it were done; "sleep" and "busy", it does something of its own for
// two minutes; "connect_kill" and "connect_stop", it is killed or stopped while the ranks connect for their first call;
// "mesh_shape" and "mesh_name", all its calls are over another mesh of the same ranks; "barrier_kill" and
// "barrier_stop", it is killed or stopped while the others wait for it in a monitored barrier. "fault_program listen"
// is another program that listens at a port, and answers no connection. FAULT_STORE=remove or lock: the rank also
// does that to the store's file.
#include <ATen/ops/ones.h>
#include <arpa/inet.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "processes/launch/launch_env.h"
#include "processes/launch/open_store.h"
#include "processes/monitored_barrier.h"
#include "tests/processes/fault_steps.h"
#include "tests/testing/faulty_communicator.h"

namespace dtensor::testing {
using namespace internal;

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

// Also says when, in seconds since 1970: how soon a job ends is counted from here.
void say_fault_fires(const std::string& fault) {
  std::fprintf(stderr, "fault fires: %s, at %lld\n", fault.c_str(), static_cast<long long>(std::time(nullptr)));
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

// Says at the store that this rank is there to make the ranks' first group, as the last of them, and sends itself
// `signal` before any rank can connect to it.
void end_while_connecting(int signal, int64_t rank, int64_t ranks) {
  const JobPlace place = find_job_place({});
  const auto store = c10::make_intrusive<c10d::PrefixStore>(
      "dtensor/" + place.run_id + "/" + std::to_string(place.restart_count) + "/1", open_store(place));
  const auto here = [](int64_t r) { return "group/tp/0,1,2,3/1/here/" + std::to_string(r); };
  for (int64_t r = 0; r < ranks; ++r) {
    if (r != rank) store->wait({here(r)});
  }
  store->set(here(rank), std::vector<uint8_t>{'0', ',', '1', ',', '2', ',', '3'});
  say_fault_fires(signal == SIGKILL ? "connect_kill" : "connect_stop");
  ::kill(::getpid(), signal);
}

// The mesh is 2 x 2, or its dim has another name.
int use_other_mesh(const World& job, bool shape) {
  say_fault_fires(shape ? "mesh_shape" : "mesh_name");
  const DeviceMesh mesh = shape ? DeviceMesh(job, {2, 2}, {"dp", "tp"}) : DeviceMesh(job, {4}, {"dp"});
  const Placements from(static_cast<size_t>(mesh.ndim()), Partial());
  const Placements to(static_cast<size_t>(mesh.ndim()), Replicate());
  redistribute(from_local({at::ones({4})}, mesh, from), to);
  return 0;
}

int run(const std::string& word, int64_t faulty_rank, int64_t call, int64_t steps) {
  const World job = World::from_env();
  const bool faulty = job.owned_ranks()[0] == faulty_rank;
  const auto say = [&] {
    spoil_store();
    say_fault_fires(word);
  };
  Fault fault;
  fault.call = call;
  fault.on_fire = say;
  const bool barrier = word == "barrier_kill" || word == "barrier_stop";
  const bool own = word == "leave" || word == "sleep" || word == "busy" || barrier;
  if (faulty && word == "connect_kill") end_while_connecting(SIGKILL, faulty_rank, job.size());
  if (faulty && word == "connect_stop") end_while_connecting(SIGSTOP, faulty_rank, job.size());
  if (faulty && (word == "mesh_shape" || word == "mesh_name")) return use_other_mesh(job, word == "mesh_shape");
  if (word == "late" || word == "stuck" || word == "slow") {
    fault.kind = Fault::Kind::kSlow;
    fault.delay = std::chrono::seconds(word == "late" ? 1 : word == "slow" ? 8 : 60);
  } else if (!own && word.find("connect_") != 0 && word.find("mesh_") != 0) {
    const auto kind = fault_kind(word);
    TORCH_CHECK_VALUE(kind, "fault_program: FAULT is '", word,
                      "'; expected a word of fault_kind(), late, stuck or leave");
    fault.kind = *kind;
  }
  const FaultSteps job_steps(faulty ? faulty_world(job, fault) : job);
  bool right = true;
  for (int64_t k = 1; k <= steps; ++k) {
    if (own && faulty && k == call) {
      say();
      if (word == "leave") return 0;
      const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(2);
      while (word == "busy" && std::chrono::steady_clock::now() < until) continue;
      if (barrier) {
        ::sleep(1);  // the others are there now
        ::kill(::getpid(), word == "barrier_kill" ? SIGKILL : SIGSTOP);
      }
      std::this_thread::sleep_until(until);
    }
    if (barrier && k == call) monitored_barrier(DeviceMesh(job, {job.size()}));
    right &= job_steps.run(k);
  }
  // A wrong result is the worst outcome: it would go unnoticed.
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
