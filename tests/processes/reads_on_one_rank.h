// Programs of a job of several processes in which one rank reads more than the others: every rank communicates what it
// does without the reads, and gets the same values.
//
// Each program uses one mechanism that remembers or defers something, and offers tensors to be read at several points.
// Each reader reads at one point, or at all of them, on one rank alone.
#pragma once

#include <torch/types.h>

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "observe/comm_debug_mode.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::testing {

using torch::Tensor;

using Read = std::function<void(const Tensor&)>;

// A program: its results, and the points at which it offers a tensor to be read.
struct Program {
  const char* name;
  std::function<std::vector<Tensor>(const DeviceMesh& mesh, const Read& read)> run;
};

inline Tensor numbers(std::vector<int64_t> sizes, uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed), torch::TensorOptions(torch::kDouble));
}

inline Tensor laid_out(std::vector<int64_t> sizes, uint64_t seed, const DeviceMesh& mesh, Placement p) {
  return distribute_tensor(numbers(std::move(sizes), seed), mesh, {p});
}

inline Tensor parameter(std::vector<int64_t> sizes, uint64_t seed, const DeviceMesh& mesh, Placement p) {
  return laid_out(std::move(sizes), seed, mesh, p).requires_grad_();
}

// Reads parts on this rank; those that are not there are an error that says what brings them.
inline void read_parts_of(const Tensor& t) {
  try {
    if (DTensor(t).mesh().local_ranks().empty()) return;  // of another stage of a pipeline
    (DTensor(t).local(0) * 2).sum();
    DTensor(t).local(0).to(torch::kDouble).norm();
    const torch::NoGradGuard no_grad;
    to_local(t);
  } catch (const c10::Error& e) {
    CHECK_THAT(e.what_without_backtrace(), Catch::Contains("fetch_parts"));
  }
}

inline void print_it(const Tensor& t) {
  std::ostringstream text;
  text << DTensor(t);
  CHECK_FALSE(text.str().empty());
}

struct Reader {
  const char* name;
  std::function<void(const Tensor& t, std::vector<Tensor>& kept)> read;
};

inline std::vector<Reader> readers() {
  return {
      {"parts", [](const Tensor& t, std::vector<Tensor>&) { read_parts_of(t); }},
      {"printing", [](const Tensor& t, std::vector<Tensor>&) { print_it(t); }},
      {"layout and shape",
       [](const Tensor& t, std::vector<Tensor>&) {
         CHECK(DTensor(t).shape_on_rank(DTensor(t).mesh().ranks().front()).size() == t.sizes().size());
       }},
      {"explanation, gradient and differentiable parts",
       [](const Tensor& t, std::vector<Tensor>& kept) {
         CHECK_FALSE(DTensor(t).explain().empty());
         if (const auto gradient = t.is_leaf() ? DTensor(t).grad() : std::nullopt) print_it(*gradient);
         try {
           for (const Tensor& part : to_local(t)) kept.push_back(part);
         } catch (const c10::Error& e) {
           CHECK_THAT(e.what_without_backtrace(), Catch::Contains("fetch_parts"));
         }
       }},
      {"in an exception handler",
       [](const Tensor& t, std::vector<Tensor>&) {
         try {
           throw std::runtime_error("a bad batch");
         } catch (const std::runtime_error&) {
           read_parts_of(t);
           print_it(t);
         }
       }},
      {"handles and parts kept",
       [](const Tensor& t, std::vector<Tensor>& kept) {
         kept.push_back(t);
         try {
           kept.push_back(DTensor(t).local(0));
         } catch (const c10::Error&) {
           // Not there: other cases look at the error.
         }
       }},
  };
}

// What this rank communicated.
inline std::vector<std::string> calls_of(const CommDebugMode& comm) {
  std::vector<std::string> calls;
  for (const CommEvent& e : comm.events())
    calls.push_back(std::string(to_string(e.collective)) + " " + std::to_string(e.bytes) + " " + e.cause.op);
  return calls;
}

struct Outcome {
  std::vector<std::string> calls;
  std::vector<Tensor> values;
  int points = 0;
};

inline Outcome run(const Program& program, const DeviceMesh& mesh,
                   const std::function<void(const Tensor&, int point)>& read) {
  Outcome outcome;
  CommDebugMode comm;
  const auto results = program.run(mesh, [&](const Tensor& t) { read(t, outcome.points++); });
  outcome.calls = calls_of(comm);
  for (const Tensor& t : results) outcome.values.push_back(full_tensor(t.detach()));
  return outcome;
}

constexpr int kMaxPointsAlone = 12;  // programs with more are read at all points at once only

inline void check_reads(const Program& program, const DeviceMesh& mesh) {
  run(program, mesh, [](const Tensor&, int) {});  // what programs remember of layouts is there for both
  const Outcome without = run(program, mesh, [](const Tensor&, int) {});
  const int points = without.points > kMaxPointsAlone ? 0 : without.points;
  for (const Reader& reader : readers()) {
    // Everywhere on one rank, and on the last one, whose parts may be the smallest; then at each point alone.
    for (int at = -2; at < points; ++at) {
      const int64_t rank = at == -2 ? mesh.size() - 1 : (at + 2) % mesh.size();
      CAPTURE(reader.name, at, rank);
      std::vector<Tensor> kept;
      const Outcome with = run(program, mesh, [&](const Tensor& t, int point) {
        if (own_rank() == rank && (at < 0 || at == point)) reader.read(t, kept);
      });
      CHECK(with.calls == without.calls);
      REQUIRE(with.values.size() == without.values.size());
      for (size_t i = 0; i < with.values.size(); ++i) {
        CAPTURE(i);
        CHECK(torch::equal(with.values[i], without.values[i]));
      }
    }
  }
}

// Runs each program without reads, then with those of each reader on one rank.
inline void check_reads(const std::vector<Program>& programs) {
  const DeviceMesh mesh(job_world(), {job_world().size()}, {"dp"});
  for (const Program& program : programs) {
    DYNAMIC_SECTION(program.name) { check_reads(program, mesh); }
  }
}

}  // namespace dtensor::testing
