// CommDebugMode: counts, causes, tree and JSON.
#include "observe/comm_debug_mode.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "comm/scope.h"
#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/scopes.h"
#include "tests/observe/mesh_of_four.h"
#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

at::Tensor sharded_ones() { return full({8, 2}, 1.0, mesh(), {Shard(0), Replicate()}); }

void send(CommListener& to, Collective collective, const char* module, const char* op, const char* argument,
          bool backward, int64_t bytes, bool implicit = true) {
  CommEvent e;
  e.collective = collective;
  e.cause = {op, argument, module, implicit};
  e.backward = backward;
  e.mesh_dims = "tp";
  e.group_size = 2;
  e.bytes = bytes;
  to.on_comm(e, /*before=*/true);
  to.on_comm(e, /*before=*/false);
}

void send_some() {
  CommListener& l = *current_scope().listeners.back();
  send(l, Collective::kAllReduce, "layers.0", "aten::gelu", "self", false, 1000);
  send(l, Collective::kAllReduce, "layers.0", "gradient", "layers.0.weight", true, 4096);
  send(l, Collective::kAllGather, "layers.1", "aten::mm", "mat2", false, 200);
  send(l, Collective::kAllReduce, "layers.0", "aten::gelu", "self", false, 1000);
  send(l, Collective::kReduceScatter, "", "redistribute", "", false, 64, false);
}

}  // namespace

TEST_CASE("comm debug mode: counts by collective, under PyTorch's names too") {
  CommDebugMode comm;
  CHECK(comm.total() == 0);
  CHECK(comm.counts().empty());
  redistribute(partial(), {Replicate(), Replicate()});
  redistribute(sharded_ones(), {Replicate(), Replicate()});
  redistribute(sharded_ones(), {Replicate(), Replicate()});
  redistribute(partial(), {Replicate(), Shard(0)});
  redistribute(sharded_ones(), {Shard(1), Replicate()});
  CHECK(comm.counts() ==
        std::map<std::string, int64_t>{{"all_reduce", 1}, {"all_gather", 2}, {"reduce_scatter", 1}, {"all_to_all", 1}});
  CHECK(comm.total() == 5);
  CHECK(comm.count(Collective::kAllGather) == 2);
  for (const char* name :
       {"all_gather", "all_gather_into_tensor", "c10d_functional.all_gather_into_tensor", "c10d::allgather_"}) {
    CHECK(comm.count(name) == 2);
  }
  CHECK(comm.count("_c10d_functional::reduce_scatter_tensor") == 1);
  CHECK(comm.count("all_to_all_single") == 1);
  CHECK(comm.count("_dtensor.shard_dim_alltoall") == 1);
  CHECK(comm.count("broadcast") == 0);
  CHECK_THROWS_WITH(comm.count("all_gathr"), Catch::Contains("all_gathr") && Catch::Contains("reduce_scatter"));
  // 4 of 8 rows come from the other rank, 2 columns of float32.
  CHECK(comm.bytes(Collective::kAllGather) == 2 * 4 * 2 * 4);
  CHECK(comm.bytes() > comm.bytes(Collective::kAllGather));
  CHECK(comm.explicit_count() == 5);
  CHECK(comm.implicit_count() == 0);
  comm.reset();
  CHECK(comm.total() == 0);
  CHECK(comm.events().empty());
}

TEST_CASE("comm debug mode: communication of the engine is implicit, with operator, argument and module") {
  CommDebugMode comm;
  {
    ModulePath path("block");
    partial().exp();
  }
  REQUIRE(comm.total() == 1);
  CHECK(comm.implicit_count() == 1);
  CHECK(comm.explicit_count() == 0);
  const CommEvent e = comm.events()[0];
  CHECK(e.cause.op == "aten::exp");
  CHECK(e.cause.argument == "self");
  CHECK(e.cause.module_path == "block");
  CHECK(e.mesh_dims == "tp");
  CHECK(e.group_size == 2);
  REQUIRE(e.layout_change != nullptr);
  CHECK(e.layout_change->from().placements == DTensor(partial()).placements());
  CHECK(e.layout_change->to().placements == Placements{Replicate(), Replicate()});
  CHECK(e.layout_change->to().where == mesh().to_string());
  CHECK(e.more_tensors == 0);
  CHECK(comm.counts_by_op() == std::map<std::string, int64_t>{{"aten::exp", 1}});
  CHECK(comm.counts_by_module() == std::map<std::string, int64_t>{{"block", 1}});
}

TEST_CASE("comm debug mode: forward and backward are distinguished, also in autograd's threads") {
  const auto w = distribute_tensor(at::ones({2, 3}), mesh(), {Replicate(), Replicate()}).requires_grad_();
  const auto x = distribute_tensor(at::ones({4, 2}), mesh(), {Shard(0), Replicate()});
  CommDebugMode comm;
  const auto loss = x.mm(w).exp().sum();
  CHECK(comm.total() == 0);
  full_tensor(loss).backward();
  CHECK(comm.forward_count() == 1);
  CHECK(comm.backward_count() == 1);
  CHECK(comm.rows().back().op == "gradient");
}

TEST_CASE("comm debug mode: modes nest, and end with their block") {
  CommDebugMode outer;
  redistribute(partial(), {Replicate(), Replicate()});
  {
    CommDebugMode inner;
    redistribute(partial(), {Replicate(), Replicate()});
    CHECK(inner.total() == 1);
  }
  redistribute(partial(), {Replicate(), Replicate()});
  CHECK(outer.total() == 3);
}

TEST_CASE("comm debug mode: another thread's communication does not count, reading works on any thread") {
  CommDebugMode comm;
  std::thread other([] { redistribute(partial(), {Replicate(), Replicate()}); });
  std::thread reader([&] {
    for (int i = 0; i < 200; ++i) {
      const auto counts = comm.counts();
      CHECK(counts.size() <= 1);
    }
  });
  for (int i = 0; i < 50; ++i) redistribute(partial(), {Replicate(), Replicate()});
  other.join();
  reader.join();
  CHECK(comm.total() == 50);
}

TEST_CASE("comm debug mode: a collective that a listener rejects does not count") {
  struct Refuse : CommListener {
    void on_comm(const CommEvent&, bool before) override {
      if (before) throw std::runtime_error("refused");
    }
  } refuse;
  CommDebugMode comm;
  {
    ScopeGuard guard([&](Scope& s) { s.listeners.push_back(&refuse); });
    CHECK_THROWS(redistribute(partial(), {Replicate(), Replicate()}));
  }
  CHECK(comm.total() == 0);
}

TEST_CASE("comm debug mode: the tree") {
  CommDebugMode comm;
  CHECK(comm.to_string() == "0 collectives, 0 bytes\n");
  send_some();
  CHECK(comm.to_string() == R"(5 collectives, 6,360 bytes: all_reduce 3, all_gather 1, reduce_scatter 1
├─ forward: 4
│  ├─ (no module): 1
│  │  └─ redistribute: reduce_scatter(tp) x1, 64 bytes, explicit
│  ├─ layers.0: 2
│  │  └─ aten::gelu self: all_reduce(tp) x2, 2,000 bytes
│  └─ layers.1: 1
│     └─ aten::mm mat2: all_gather(tp) x1, 200 bytes
└─ backward: 1
   └─ layers.0: 1
      └─ gradient layers.0.weight: all_reduce(tp) x1, 4,096 bytes
)");
}

TEST_CASE("comm debug mode: JSON has the same counts") {
  CommDebugMode comm;
  send_some();
  const auto j = nlohmann::json::parse(comm.to_json());
  CHECK(j["total"] == 5);
  CHECK(j["bytes"] == 6360);
  CHECK(j["counts"]["all_reduce"] == 3);
  CHECK(j["rows"].size() == 4);
  CHECK(j["rows"][1]["module"] == "layers.0");
  CHECK(j["rows"][1]["count"] == 2);
  CHECK(j["rows"][3]["phase"] == "backward");
  CHECK(j["rows"][0]["implicit"] == false);
  CHECK(j["events"].size() == 5);
  CHECK(j["events"][2]["collective"] == "all_gather");
  CHECK(j["events"][2]["argument"] == "mat2");
}

}  // namespace dtensor
