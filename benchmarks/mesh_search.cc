// How long search_layouts() takes to choose the mesh of programs that are no neural networks, on 4,096 imaginary ranks.
//
//   ./bazelw run //benchmarks:mesh_search
//   ./bazelw run //benchmarks:mesh_search -- --only stencil --explain
#include <torch/fft.h>
#include <torch/types.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "dtensor/factories.h"
#include "dtensor/ghost_width.h"
#include "dtensor/remembered_layouts.h"
#include "dtensor/search_layouts.h"
#include "plan/known_clusters.h"
#include "tools/flags.h"

ABSL_FLAG(std::string, only, "", "the programs whose names contain this");
ABSL_FLAG(bool, explain, false, "print what each search found");

namespace {

using namespace dtensor;
using namespace dtensor::benchmarks;
using torch::Tensor;

constexpr int64_t kRanks = 4096;
constexpr int64_t kPoints = 4096;  // along each side of a cube
constexpr double kGateSeconds = 60;

struct Program {
  std::string name;
  std::vector<std::string> mesh_dims;
  std::function<std::function<void()>(const LayoutChoice&)> make_step;
};

// A cube of complex numbers that is split along two of its sides, in slabs where one mesh dim is 1 and in pencils else.
std::function<void()> fourier_step(const LayoutChoice& choice) {
  const Tensor x =
      zeros({kPoints, kPoints, kPoints}, choice.mesh, {Shard(0), Shard(1)}, {.dtype = torch::kComplexFloat});
  return [x] { torch::fft::fftn(x); };
}

// A time step of the heat equation on a cube that is split along its three sides, with the neighbours' points fetched
// once.
std::function<void()> stencil_step(const LayoutChoice& choice) {
  const Tensor u = zeros({kPoints, kPoints, kPoints}, choice.mesh, {Shard(0), Shard(1), Shard(2)});
  limit_remembered_bytes(choice.mesh.world(), int64_t{1} << 30);  // a part and its ghost region
  set_ghost_width(u, {1, 1, 1});
  return [u] {
    const auto shifted = [&](int64_t dim, int64_t begin) { return u.narrow(dim, begin, kPoints - 2); };
    const auto inner = [&](Tensor t, int64_t but) {
      for (int64_t d = 0; d < 3; ++d) {
        if (d != but) t = t.narrow(d, 1, kPoints - 2);
      }
      return t;
    };
    Tensor sum = inner(u, -1) * -6;
    for (int64_t d = 0; d < 3; ++d) sum = sum + inner(shifted(d, 0), d) + inner(shifted(d, 2), d);
    inner(u, -1).add_(sum, 0.1);
  };
}

int run() {
  Gates gates;
  const std::vector<Program> programs = {{"FFT of 4096^3 on 4,096 ranks", {"x", "y"}, fourier_step},
                                         {"stencil on 4096^3 on 4,096 ranks", {"x", "y", "z"}, stencil_step}};
  for (const Program& program : programs) {
    if (program.name.find(absl::GetFlag(FLAGS_only)) == std::string::npos) continue;
    const Cluster epyc = cluster("epyc9654x2");
    SearchLayoutsOptions options;
    options.ranks = kRanks;
    options.mesh_dims = program.mesh_dims;
    options.cost_model = epyc.cost_model();
    options.max_bytes = epyc.memory_bytes;
    options.progress = [&](int64_t done, int64_t all) {
      std::fprintf(stderr, "\r%s: %lld of %lld ", program.name.c_str(), static_cast<long long>(done),
                   static_cast<long long>(all));
    };
    const auto begin = std::chrono::steady_clock::now();
    const LayoutSearch found = search_layouts(program.make_step, options);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::fputc('\n', stderr);
    gates.at_most(absl::StrCat("seconds to search: ", program.name, ", ", found.candidates.size(), " meshes"), seconds,
                  kGateSeconds);
    if (absl::GetFlag(FLAGS_explain)) std::printf("%s\n", found.explain(5).c_str());
  }
  return gates.close();
}

}  // namespace

int main(int argc, char** argv) {
  return dtensor::tools::run_program("mesh_search", "Searches meshes of large programs on imaginary ranks.", argc, argv,
                                     run);
}
