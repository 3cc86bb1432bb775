#include <ATen/Parallel.h>
#include <cstdio>
#include <map>
#include <chrono>
#include <cstdlib>
#include "tests/fuzz/generate.h"
#include "tests/fuzz/run.h"
using namespace dtensor::fuzz;
int main(int argc, char** argv) {
  at::set_num_threads(1);
  uint64_t seed = atoi(argv[1]), from = atoi(argv[2]), to = atoi(argv[3]);
  auto t0 = std::chrono::steady_clock::now();
  std::map<std::string,int> counts, sig;
  size_t steps=0; 
  for (uint64_t k = from; k < to; ++k) {
    Program p = generate(seed, k);
    if (argc > 4) printf("%ld\n%s", (long)k, to_string(p).c_str()), fflush(stdout);
    auto o = run(p);
    steps += p.steps.size();
    counts[to_string(o.kind)]++;
    if (is_finding(o.kind) || (o.kind==Kind::kInvalid && argc>4)) { if (sig[signature(o)]++ == 0) printf("%ld %s | %s\n%s", (long)k, signature(o).c_str(), o.message.substr(0,300).c_str(), argc>4?"":to_string(p).c_str()); }
  }
  double s = std::chrono::duration<double>(std::chrono::steady_clock::now()-t0).count();
  printf("%.1f s, %zu steps, catalog\n", s, steps);
  for (auto& [k,v]:counts) printf("%s %d\n", k.c_str(), v);
  for (auto& [k,v]:sig) printf("%6d %s\n", v, k.c_str());
}
