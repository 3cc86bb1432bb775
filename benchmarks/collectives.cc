// Measures collectives of two ranks in one process, where a rank reads the memory of the other, compared with loops by
// hand. //benchmarks/processes compares them with jobs.
//
//   ./bazelw run //benchmarks:collectives       # a minute; on an idle machine

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "comm/communicator.h"
#include "mesh/device_mesh.h"
#include "tools/flags.h"

namespace dtensor::benchmarks {
using namespace internal;

namespace {

constexpr int kRanks = 2;

struct Case {
  const char* name;
  // One call of the communicator, and the same by hand, on `inputs` of one size per rank.
  RankPieces (*ours)(Communicator&, const CommCall&, const RankTensors& inputs);
  RankPieces (*by_hand)(const RankTensors& inputs);
};

at::Tensor like(const at::Tensor& t, int64_t times = 1) { return at::empty({t.numel() * times}, t.options()); }

void copy(float* to, const at::Tensor& from, int64_t begin, int64_t numel) {
  std::memcpy(to, from.const_data_ptr<float>() + begin, static_cast<size_t>(numel) * sizeof(float));
}

void add(float* __restrict sum, const float* __restrict a, const float* __restrict b, int64_t numel) {
  for (int64_t i = 0; i < numel; ++i) sum[i] = a[i] + b[i];
}

RankPieces pieces(RankTensors tensors) {
  RankPieces list;
  for (at::Tensor& t : tensors) list.push_back({std::move(t)});
  return list;
}

RankPieces halves(const RankTensors& inputs) {
  RankPieces parts;
  for (const at::Tensor& t : inputs)
    parts.push_back({t.narrow(0, 0, t.numel() / 2), t.narrow(0, t.numel() / 2, t.numel() / 2)});
  return parts;
}

const Case kCases[] = {
    {"all_reduce",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) {
       return pieces(comm.all_reduce(call, in, ReduceOp::kSum));
     },
     [](const RankTensors& in) {
       RankTensors out = {like(in[0]), like(in[0])};
       add(out[0].mutable_data_ptr<float>(), in[0].const_data_ptr<float>(), in[1].const_data_ptr<float>(),
           in[0].numel());
       copy(out[1].mutable_data_ptr<float>(), out[0], 0, in[0].numel());
       return pieces(out);
     }},
    {"all_gather",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) { return comm.all_gather(call, in); },
     [](const RankTensors& in) {
       RankPieces out;
       for (int r = 0; r < kRanks; ++r) {
         out.push_back({like(in[0]), like(in[1])});
         for (int s = 0; s < kRanks; ++s) copy(out[r][s].mutable_data_ptr<float>(), in[s], 0, in[s].numel());
       }
       return out;
     }},
    {"reduce_scatter",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) {
       return pieces(comm.reduce_scatter(call, halves(in), ReduceOp::kSum));
     },
     [](const RankTensors& in) {
       const int64_t half = in[0].numel() / 2;
       RankTensors out;
       for (int r = 0; r < kRanks; ++r) {
         out.push_back(at::empty({half}, in[0].options()));
         add(out[r].mutable_data_ptr<float>(), in[0].const_data_ptr<float>() + r * half,
             in[1].const_data_ptr<float>() + r * half, half);
       }
       return pieces(out);
     }},
    {"all_to_all",
     [](Communicator& comm, const CommCall& call, const RankTensors& in) { return comm.all_to_all(call, halves(in)); },
     [](const RankTensors& in) {
       const int64_t half = in[0].numel() / 2;
       RankPieces out;
       for (int r = 0; r < kRanks; ++r) {
         for (int s = 0; s < kRanks; ++s) {
           if (s == 0) out.emplace_back();
           out[r].push_back(at::empty({half}, in[0].options()));
           copy(out[r][s].mutable_data_ptr<float>(), in[s], r * half, half);
         }
       }
       return out;
     }},
};

// Sizes of float32 tensors.
constexpr int64_t kBytes[] = {4, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};

void measure(const Case& c, int64_t bytes, Communicator& communicator, const CommCall& call, Gates& gates) {
  const RankTensors inputs = {at::rand({bytes / 4}), at::rand({bytes / 4})};
  // By turns, so that a slow moment hits both.
  double ours = 1, hand = 1;
  for (int turn = 0; turn < 3; ++turn) {
    ours = std::min(ours, time_calls([&] { c.ours(communicator, call, inputs); }));
    hand = std::min(hand, time_calls([&] { c.by_hand(inputs); }));
  }
  const Comparison row{absl::StrCat(c.name, " of ", tools::human_bytes(bytes), ", 2 ranks, in one process"),
                       "loops by hand", "us", hand * 1e6, ours * 1e6};
  bytes >= 1 << 20 ? gates.at_most(row, ours / hand, 1.3) : gates.note(row, ours / hand);
}

int run() {
  at::set_num_threads(1);
  keep_memory_of_tensors();
  const DeviceMesh mesh(World::local(kRanks), {kRanks}, {"x"});
  CommCall call;
  call.group = &mesh.get_group(0);
  call.ranks = mesh.local_ranks();
  Gates gates;
  for (const Case& c : kCases) {
    for (const int64_t bytes : kBytes) {
      if (bytes == 4 && &c != kCases) continue;  // has no halves
      measure(c, bytes, mesh.world().communicator(), call, gates);
    }
  }
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("collectives", "Times collectives in one process next to loops by hand.", argc,
                                     argv, dtensor::benchmarks::run);
}
