// Collectives between processes give what they give in one process, bit for bit. Runs in every rank's process.
#include "processes/c10d/c10d_communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <functional>

#include "comm/comm_work.h"
#include "comm/communicator.h"
#include "processes/c10d/first_messages.h"
#include "tests/processes/job_world.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/test_ranks.h"

namespace dtensor {
using namespace internal;

namespace {

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,        at::kInt,
                                      at::kShort, at::kChar,   at::kByte, at::kBool,     at::kComplexFloat};

// Runs `body` with a call over mesh dim `dim` in both worlds, and compares what this rank gets.
template <typename Body>
void check_same(const std::vector<int64_t>& shape, int64_t dim, Body body) {
  const DeviceMesh mesh(job_world(), shape);
  const DeviceMesh twin(twin_world(), shape);
  REQUIRE(mesh.local_ranks().size() == 1);
  const RankPieces here = body(call_on(mesh, {dim}), mesh.world().communicator());
  const RankPieces all = body(call_on(twin, {dim}), twin.world().communicator());
  REQUIRE(here.size() == 1);
  const auto& expected = all[mesh.local_ranks()[0]];
  REQUIRE(here[0].size() == expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    INFO("tensor " << i << " of rank " << mesh.local_ranks()[0]);
    REQUIRE(here[0][i].scalar_type() == expected[i].scalar_type());
    CHECK(at::equal(here[0][i], expected[i]));
  }
}

RankPieces as_pieces(const RankTensors& tensors) {
  RankPieces pieces;
  for (const at::Tensor& t : tensors) pieces.push_back({t});
  return pieces;
}

std::vector<std::vector<int64_t>> mesh_shapes() {
  const int64_t n = job_world().size();
  if (n == 4) return {{4}, {2, 2}};
  return {{n}};
}

TEST_CASE("reductions of every dtype and operation") {
  for (const auto& shape : mesh_shapes()) {
    for (int64_t dim = 0; dim < static_cast<int64_t>(shape.size()); ++dim) {
      for (at::ScalarType dtype : kDtypes) {
        for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
          if (op == ReduceOp::kAvg && !c10::isFloatingType(dtype) && !c10::isComplexType(dtype)) continue;
          if ((op == ReduceOp::kMin || op == ReduceOp::kMax) && c10::isComplexType(dtype)) continue;
          CAPTURE(shape, dim, c10::toString(dtype), to_string(op));
          check_same(shape, dim, [&](const CommCall& call, Communicator& comm) {
            RankTensors inputs;
            for (int64_t rank : call.ranks) inputs.push_back(values({3, 5}, dtype, rank));
            return as_pieces(comm.all_reduce(call, inputs, op));
          });
          check_same(shape, dim, [&](const CommCall& call, Communicator& comm) {  // uneven, and one that is empty
            RankPieces inputs;
            for (int64_t rank : call.ranks) {
              auto& pieces = inputs.emplace_back();
              for (int64_t p = 0; p < call.group->size; ++p) pieces.push_back(values({p, 2}, dtype, rank + p));
            }
            return as_pieces(comm.reduce_scatter(call, inputs, op));
          });
        }
      }
    }
  }
}

TEST_CASE("parts around the size that goes with the comparison of calls") {
  for (const auto& shape : mesh_shapes()) {
    for (const int64_t first : {1000, 8190, 8191, 8192, 8193}) {
      CAPTURE(shape, first);
      check_same(shape, 0, [&](const CommCall& call, Communicator& comm) {  // a byte more for each position
        RankPieces inputs;
        for (int64_t rank : call.ranks) {
          auto& pieces = inputs.emplace_back();
          for (int64_t p = 0; p < call.group->size; ++p) pieces.push_back(values({first + p}, at::kByte, rank + p));
        }
        return as_pieces(comm.reduce_scatter(call, inputs, ReduceOp::kSum));
      });
      check_same(shape, 0, [&](const CommCall& call, Communicator& comm) {  // only one rank receives
        RankTensors inputs;
        for (int64_t rank : call.ranks) inputs.push_back(values({first}, at::kByte, rank));
        return comm.gather(call, inputs, 1);
      });
    }
  }
}

// The first messages of every member of a group of `size` ranks, of which rank 0 sends each other one a part of
// `bytes`.
std::vector<FirstMessages> first_messages(int64_t size, int64_t bytes, std::vector<ByteExchange>& exchanges) {
  const DeviceMesh mesh(World::abstract(size), {size});
  std::vector<FirstMessages> messages;
  std::vector<Message> parts;
  for (int64_t r = 1; r < size; ++r) parts.push_back({0, r, r, 0, {{0}, {0}, {bytes}}});
  CallMark mark;
  mark.members = mesh.get_group(0).members[0];
  for (int64_t rank = 0; rank < size; ++rank) {
    RankPieces in(1), out(1);
    for (int64_t r = 0; rank == 0 && r < size; ++r) in[0].push_back(values({bytes}, at::kByte, r));
    out[0].push_back(at::empty({bytes}, at::kByte));
    exchanges.emplace_back(mesh.get_group(0), rank, c10::Device(c10::kCPU), parts, in, out, /*inputs_stay=*/true,
                           /*may_all_gather=*/false);
    mark.position = rank;
    messages.emplace_back(mark, exchanges.back());
  }
  for (int64_t to = 0; to < size; ++to) {  // as if they had been exchanged
    for (int64_t from = 0; from < size; ++from) messages[to].receive[from].copy_(messages[from].send[to]);
  }
  return messages;
}

TEST_CASE("first messages have room for a part, which is smaller in large groups") {
  const auto [size, room] = GENERATE(Catch::Generators::table<int64_t, int64_t>(
      {{2, 8192}, {8, 8192}, {9, 64 * 1024 / 9}, {32, 2048}, {64, 1024}, {100, 1024}}));
  CAPTURE(size, room);
  for (const int64_t bytes : {room, room + 1}) {
    std::vector<ByteExchange> exchanges;
    const std::vector<FirstMessages> messages = first_messages(size, bytes, exchanges);
    for (int64_t rank = 0; rank < size; ++rank) {
      REQUIRE(messages[rank].hold_all() == (bytes <= room));  // ranks agree, also those that get nothing large
      if (rank == 0 || bytes > room) continue;
      messages[rank].copy_to(exchanges[rank]);
      REQUIRE(at::equal(exchanges[rank].receive, values({bytes}, at::kByte, rank)));
    }
  }
}

TEST_CASE("a large all-reduce, whose parts differ in size, and several tensors in one") {
  check_same({job_world().size()}, 0, [&](const CommCall& call, Communicator& comm) {
    RankPieces inputs;
    for (int64_t rank : call.ranks) {
      inputs.push_back({values({300, 331}, at::kDouble, rank), values({7}, at::kBFloat16, rank),
                        values({}, at::kFloat, rank), values({0, 3}, at::kLong, rank),
                        values({50000}, at::kHalf, rank)});
    }
    return comm.all_reduce_many(call, inputs, ReduceOp::kSum);
  });
}

TEST_CASE("calls that go on have read their inputs when they return") {
  for (const int64_t rows : {3, 4000}) {
    CAPTURE(rows);
    const int64_t n = job_world().size();
    // Calls `collective` with a tensor of n * rows x 5, and overwrites it before it waits.
    const auto check = [&](const auto& collective) {
      check_same({n}, 0, [&](CommCall call, Communicator& comm) {
        RankTensors inputs;
        for (int64_t rank : call.ranks) inputs.push_back(values({n * rows, 5}, at::kFloat, rank));
        std::shared_ptr<CommWork> work;
        call.work = &work;
        const RankPieces results = collective(call, comm, inputs);
        for (const at::Tensor& t : inputs) t.fill_(-1);
        if (work != nullptr) work->wait();
        return results;
      });
    };
    check([](const CommCall& call, Communicator& comm, const RankTensors& inputs) {
      return as_pieces(comm.all_reduce(call, inputs, ReduceOp::kSum));
    });
    check([](const CommCall& call, Communicator& comm, const RankTensors& inputs) {
      return comm.all_gather(call, inputs);
    });
    check([&](const CommCall& call, Communicator& comm, const RankTensors& inputs) {
      RankPieces parts;
      for (const at::Tensor& t : inputs) {
        const auto chunks = t.chunk(n);
        parts.push_back(Pieces(chunks.begin(), chunks.end()));
      }
      return as_pieces(comm.reduce_scatter(call, parts, ReduceOp::kSum));
    });
  }
}

TEST_CASE("pieces of every dtype, uneven and empty") {
  for (const auto& shape : mesh_shapes()) {
    for (at::ScalarType dtype : kDtypes) {
      CAPTURE(shape, c10::toString(dtype));
      check_same(shape, 0, [&](CommCall call, Communicator& comm) {
        RankTensors inputs;
        for (int64_t rank : call.ranks) {
          inputs.push_back(values({call.group->position_of[rank], 3}, dtype, rank));
          auto& shapes = call.receive_shapes.emplace_back();
          for (int64_t p = 0; p < call.group->size; ++p) shapes.push_back({p, 3});
        }
        return comm.all_gather(call, inputs);
      });
      check_same(shape, 0, [&](CommCall call, Communicator& comm) {
        RankPieces inputs;
        for (int64_t rank : call.ranks) {
          auto& pieces = inputs.emplace_back();
          auto& shapes = call.receive_shapes.emplace_back();
          for (int64_t p = 0; p < call.group->size; ++p) {
            pieces.push_back(values({call.group->position_of[rank], p}, dtype, 10 * rank + p).t());  // not contiguous
            shapes.push_back({call.group->position_of[rank], p});
          }
        }
        return comm.all_to_all(call, inputs);
      });
      check_same(shape, 0, [&](CommCall call, Communicator& comm) {
        RankTensors inputs;
        for (int64_t rank : call.ranks) inputs.push_back(values({4, 2}, dtype, rank));
        return as_pieces(comm.broadcast(call, inputs, call.group->size - 1));
      });
    }
  }
}

TEST_CASE("barriers, and counts that grow past every comparison") {
  const DeviceMesh mesh(job_world(), {job_world().size()});
  const CommCall call = call_on(mesh, {0});
  for (int i = 0; i < 150; ++i) mesh.world().communicator().barrier(call);
  CHECK(job_world().kind() == World::Kind::kProcesses);
}

}  // namespace
}  // namespace dtensor
