#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>

#include <functional>

#include "absl/strings/str_cat.h"
#include "benchmarks/measure.h"
#include "benchmarks/processes/parts.h"
#include "dtensor/dtensor.h"

namespace dtensor::benchmarks {
namespace {

struct Change {
  Placement from, to;
  // By hand: the collectives of `peer`, with the copies that put pieces together.
  at::Tensor (*by_hand)(Peer& peer, const at::Tensor& local, int64_t n, int64_t ranks);
};

const Change kChanges[] = {
    {Shard(0), Replicate(),
     [](Peer& peer, const at::Tensor& local, int64_t n, int64_t) {
       at::Tensor out = at::empty({n, n});
       peer.all_gather(local, out);
       return out;
     }},
    {Shard(0), Shard(1),
     [](Peer& peer, const at::Tensor& local, int64_t n, int64_t ranks) {
       const int64_t part = n / ranks;
       at::Tensor out = at::empty({n, part});
       peer.all_to_all(local.view({part, ranks, part}).transpose(0, 1).contiguous(), out);
       return out;
     }},
    {Shard(1), Replicate(),
     [](Peer& peer, const at::Tensor& local, int64_t n, int64_t ranks) {
       at::Tensor parts = at::empty({ranks * n, n / ranks});
       peer.all_gather(local, parts);
       return parts.view({ranks, n, n / ranks}).transpose(0, 1).reshape({n, n});
     }},
    {Partial(), Replicate(),
     [](Peer& peer, const at::Tensor& local, int64_t n, int64_t) {
       at::Tensor out = at::empty({n, n});
       peer.all_reduce(local, out);
       return out;
     }},
    {Partial(), Shard(0),
     [](Peer& peer, const at::Tensor& local, int64_t n, int64_t ranks) {
       at::Tensor out = at::empty({n / ranks, n});
       peer.reduce_scatter(local, out);
       return out;
     }},
};

bool is_for_scalapack(const Change& c) { return c.from == Shard(0) && c.to == Shard(1); }

constexpr int64_t kSides[] = {256, 1024, 2048};

std::string name_of(const Change& c, int64_t n, int64_t ranks) {
  return absl::StrCat("redistribute() ", to_string(c.from), " -> ", to_string(c.to), " of ", n, " x ", n, ", ", ranks,
                      " ranks");
}

at::Tensor local_part(const Placement& from, int64_t n, int64_t ranks) {
  return at::rand({from == Shard(0) ? n / ranks : n, from == Shard(1) ? n / ranks : n});
}

// Of all ranks that this process owns. A new tensor each time, since a reduction is kept.
std::function<at::Tensor()> our_change(const Change& c, const at::Tensor& local, const DeviceMesh& mesh) {
  std::vector<at::Tensor> locals;
  for (size_t i = 0; i < mesh.local_ranks().size(); ++i) locals.push_back(local.clone());
  return [&c, mesh, locals] { return redistribute(from_local(locals, mesh, {c.from}), {c.to}); };
}

void run_redistribute(const RankSetup& setup) {
  const int64_t ranks = setup.mesh.size();
  for (const Change& c : kChanges) {
    for (const int64_t n : kSides) {
      // Ranks have the same random numbers.
      const at::Tensor local = local_part(c.from, n, ranks).add_(setup.mesh.local_ranks()[0]);
      const auto ours = our_change(c, local, setup.mesh);
      const at::Tensor expected = to_local(ours())[0];
      const auto check = [&](const at::Tensor& result, const std::string& name) {
        TORCH_CHECK(at::allclose(result.reshape(expected.sizes()), expected), name_of(c, n, ranks), " of ", name,
                    " differs");
      };
      std::vector<Way> ways = {{kOurs, ours}};
      for (const auto& peer : setup.peers) {
        const auto by_hand = [&c, &peer, local, n, ranks] { return c.by_hand(*peer, local, n, ranks); };
        check(by_hand(), peer->name());
        ways.push_back({peer->name(), by_hand});
      }
      if (setup.scalapack != nullptr && is_for_scalapack(c)) {
        const auto copy = [scalapack = setup.scalapack, local, n, ranks] {
          at::Tensor out = at::empty({n, n / ranks});
          scalapack->rows_to_columns(local, out, n);
          return out;
        };
        check(copy(), kScalapack);
        ways.push_back({kScalapack, copy});
      }
      time_ways(name_of(c, n, ranks), ways, n == 256 ? 15 : 7, n == 256 ? 10 : 2);
    }
  }
}

void report_redistribute(int ranks, const Figures& figures, Gates& gates) {
  const DeviceMesh mesh(World::local(ranks), {ranks}, {"x"});
  for (const Change& c : kChanges) {
    for (const int64_t n : kSides) {
      const Measured m{name_of(c, n, ranks), figures, time_calls(our_change(c, local_part(c.from, n, ranks), mesh))};
      std::vector<const char*> peers = {kGloo, kMpi};
      if (is_for_scalapack(c)) peers.push_back(kScalapack);
      for (const char* peer : peers) {
        add_row_of_one_process(m, peer, peer == kGloo ? 4 : 1, gates);
        add_row_of_processes(m, peer, gates);
      }
    }
  }
}

}  // namespace

Part redistribute_part() { return {"redistribute", {2}, {kMpi, kScalapack}, run_redistribute, report_redistribute}; }

}  // namespace dtensor::benchmarks
