// Measures the overhead of a call on a distributed tensor over the same call on a plain one. The tensors are small, so
// that the time is that of the library and of ATen's dispatcher, not of arithmetic. No call communicates, and the
// decisions are in the cache.
//
//   ./bazelw run //benchmarks:dispatch
//
// The process owns one of eight ranks, whose local tensors are as large as the plain ones. With --count it only makes
// one call of each kind, and five redistributions for 256 ranks, whose instructions instructions.py counts.
#include <ATen/Parallel.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <functional>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/floor.h"
#include "benchmarks/gates.h"
#include "benchmarks/measure.h"
#include "dtensor/dtensor.h"
#include "tools/flags.h"

ABSL_FLAG(bool, count, false, "only calls for valgrind to count instructions");

namespace dtensor::benchmarks {
namespace {

using Call = std::function<void()>;

// Makes a tensor of these sizes: plain, or the local tensor of a distributed one in a given layout.
using Make = std::function<at::Tensor(std::vector<int64_t> sizes)>;

struct Operator {
  std::string name;
  double gate;  // of ours / plain; 0: none
  // `make` for the input, `replicated` for one that all ranks hold.
  std::function<Call(const Make& make, const Make& replicated)> call;
};

Call unary(const Make& make, std::function<at::Tensor(const at::Tensor&)> function) {
  return [x = make({10, 10}), function = std::move(function)] { function(x); };
}

const std::vector<Operator>& operators() {
  static const auto* const all = new std::vector<Operator>{
      {"add", 1.5,
       [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return x.add(x); }); }},
      {"add_", 2.0,
       [](const Make& make, const Make&) -> Call {
         const at::Tensor x = make({10, 10}), zero = at::zeros_like(x);  // x stays as it is
         return [x, zero] { x.add_(zero); };
       }},
      {"mul by a number", 1.6,
       [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return x.mul(2); }); }},
      {"mm of 8 x 8", 1.5,
       [](const Make& make, const Make& replicated) -> Call {
         return [x = make({8, 8}), w = replicated({8, 8})] { x.mm(w); };
       }},
      {"view", 2.5,
       [](const Make& make, const Make&) {
         return unary(make, [](const at::Tensor& x) { return x.view({-1, 2, 5}); });
       }},
      {"detach", 2.5,
       [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return x.detach(); }); }},
      {"t", 2.5, [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return x.t(); }); }},
      {"relu", 1.6,
       [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return x.relu(); }); }},
      {"sum", 1.6,
       [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return x.sum(); }); }},
      {"embedding", 0,  // has another kernel than the plain one where the table is sharded by rows
       [](const Make& make, const Make& replicated) -> Call {
         return [table = make({8, 8}), ids = replicated({8}).abs().clamp_max(7).to(at::kLong)] {
           at::embedding(table, ids);
         };
       }},
  };
  return *all;
}

// Composite operators, decided as one except for reshape; and two that models call between them.
const std::vector<Operator>& composites() {
  static const auto* const all = new std::vector<Operator>{
      {"linear of 2 x 4 x 8", 1.5,
       [](const Make& make, const Make& replicated) -> Call {
         return [x = make({2, 4, 8}), w = replicated({8, 8})] { at::linear(x, w); };
       }},
      {"linear of 2 x 4 x 8 with bias", 1.5,
       [](const Make& make, const Make& replicated) -> Call {
         return [x = make({2, 4, 8}), w = replicated({8, 8}), b = replicated({8})] { at::linear(x, w, b); };
       }},
      {"matmul of 2 x 4 x 8", 1.5,
       [](const Make& make, const Make& replicated) -> Call {
         return [x = make({2, 4, 8}), w = replicated({8, 8})] { at::matmul(x, w); };
       }},
      {"layer_norm", 1.5,
       [](const Make& make, const Make& replicated) -> Call {
         return [x = make({2, 4, 8}), w = replicated({8}), b = replicated({8})] { at::layer_norm(x, {8}, w, b); };
       }},
      {"rms_norm", 1.5,
       [](const Make& make, const Make& replicated) -> Call {
         return [x = make({2, 4, 8}), w = replicated({8})] { at::rms_norm(x, {8}, w); };
       }},
      {"scaled_dot_product_attention", 1.5,
       [](const Make& make, const Make&) -> Call {
         return [q = make({2, 2, 4, 8}), k = make({2, 2, 4, 8}), v = make({2, 2, 4, 8})] {
           at::scaled_dot_product_attention(q, k, v);
         };
       }},
      {"softmax", 1.5,
       [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return x.softmax(-1); }); }},
      {"reshape", 0,
       [](const Make& make, const Make&) {
         return unary(make, [](const at::Tensor& x) { return x.reshape({-1, 2, 5}); });
       }},
      {"transpose", 0,
       [](const Make& make, const Make&) {
         return unary(make, [](const at::Tensor& x) { return x.transpose(0, 1); });
       }},
      {"silu", 0,
       [](const Make& make, const Make&) { return unary(make, [](const at::Tensor& x) { return at::silu(x); }); }},
  };
  return *all;
}

std::vector<Operator> all_operators() {
  std::vector<Operator> all = operators();
  all.insert(all.end(), composites().begin(), composites().end());
  return all;
}

struct Layout {
  DeviceMesh mesh;
  Placements placements;
};

std::vector<Layout> layouts() {
  const World world = World::fake(8, 0);
  const DeviceMesh line(world, {8}), grid(world, {2, 4});
  return {{line, {Replicate()}}, {line, {Shard(0)}}, {grid, {Replicate(), Replicate()}}, {grid, {Shard(0), Shard(0)}}};
}

at::Tensor make_plain(std::vector<int64_t> sizes) { return at::randn(sizes); }

Make maker(const DeviceMesh& mesh, Placements placements) {
  return [mesh, placements = std::move(placements)](std::vector<int64_t> sizes) {
    return from_local({at::randn(sizes)}, mesh, placements);
  };
}

Make replicated_maker(const DeviceMesh& mesh) {
  return maker(mesh, Placements(static_cast<size_t>(mesh.ndim()), Replicate()));
}

std::string text(const Layout& layout) {
  return absl::StrCat(to_string(layout.placements), " on ", layout.mesh.to_string());
}

void time_operators(Gates& gates) {
  const at::NoGradGuard no_grad;
  for (const Layout& layout : layouts()) {
    for (const Operator& op : all_operators()) {
      const PairedTimes times =
          time_pairs(op.call(maker(layout.mesh, layout.placements), replicated_maker(layout.mesh)),
                     op.call(make_plain, make_plain));
      const Comparison row = compared(absl::StrCat(op.name, ", ", text(layout)), "plain LibTorch", times);
      op.gate > 0 ? gates.at_most(row, times.ratio, op.gate) : gates.note(row, times.ratio);
    }
  }
}

// Beside a wrapper by hand, in no layout: one that all calls know.
void time_floor(Gates& gates) {
  const at::NoGradGuard no_grad;
  const Layout layout = layouts()[1];
  const Make by_hand = [](std::vector<int64_t> sizes) { return wrap_by_hand(at::randn(sizes)); };
  for (const Operator& op : operators()) {
    if (op.name != "add" && op.name != "mm of 8 x 8" && op.name != "relu") continue;
    const PairedTimes times = time_pairs(op.call(maker(layout.mesh, layout.placements), replicated_maker(layout.mesh)),
                                         op.call(by_hand, by_hand));
    gates.at_most(compared(op.name + ", beside a wrapper by hand", "a wrapper by hand", times), times.ratio, 1.25);
  }
}

// Twenty operators, all with gradients.
at::Tensor chain(at::Tensor x, const at::Tensor& w) {
  for (int i = 0; i < 5; ++i) x = x.mul(w).add(w).sigmoid().mul(2);
  return x;
}

Call forward(const Make& make) {
  return [x = make({10, 10}), w = make({10, 10}).requires_grad_()] { chain(x, w); };
}

void time_chain(Gates& gates) {
  for (const Layout& layout : layouts()) {
    const auto both = [](const Make& make) -> Call {
      return [x = make({10, 10}), w = make({10, 10}).requires_grad_(), grad = make({10, 10})] {
        w.mutable_grad() = at::Tensor();
        chain(x, w).backward(grad);
      };
    };
    const Make make = maker(layout.mesh, layout.placements);
    const PairedTimes once = time_pairs(forward(make), forward(make_plain));
    gates.at_most(compared("20 operators, forward, " + text(layout), "plain LibTorch", once), once.ratio, 1.35);
    const PairedTimes twice = time_pairs(both(make), both(make_plain));
    gates.at_most(compared("20 operators, forward and backward, " + text(layout), "plain LibTorch", twice), twice.ratio,
                  1.4);
  }
}

struct Inputs {
  at::Tensor replicated, first_addends, second_addends;
};

Inputs inputs(const DeviceMesh& mesh, int64_t size) {
  return {zeros({size, size}, mesh, {Replicate()}), zeros({size, size}, mesh, {Partial()}),
          zeros({size, size}, mesh, {Partial()})};
}

void redistribute_all(const Inputs& t) {
  const at::Tensor rows = redistribute(t.replicated, {Shard(0)});
  const at::Tensor columns = redistribute(rows, {Shard(1)});
  redistribute(columns, {Replicate()});
  redistribute(t.first_addends, {Replicate()});
  redistribute(t.second_addends, {Shard(0)});
}

// Once, for layouts that were never seen before; the code itself has run already, for another size.
void count_redistributions() {
  const DeviceMesh mesh(World::abstract(256), {256}, {"x"});
  redistribute_all(inputs(mesh, 1024));
  const Inputs fresh = inputs(mesh, 4096);
  count_instructions("five redistributions", [&] { redistribute_all(fresh); });
}

void count_pair(const std::string& name, const Call& plain, const Call& ours) {
  for (int i = 0; i < 3; ++i) plain(), ours();
  count_instructions("plain " + name, plain);
  count_instructions(name, ours);
}

Call linear_with_gradient(const Make& make, const Make& replicated) {
  return [x = make({2, 4, 8}), w = replicated({8, 8}).requires_grad_()] { at::linear(x, w); };
}

void count_operators() {
  const Layout layout = layouts()[1];
  const Make make = maker(layout.mesh, layout.placements), replicated = replicated_maker(layout.mesh);
  const auto count_one = [&](const Operator& op) {
    count_pair(op.name, op.call(make_plain, make_plain), op.call(make, replicated));
  };
  {
    const at::NoGradGuard no_grad;
    for (const Operator& op : operators()) count_one(op);
    for (const Operator& op : composites()) {
      if (op.name == "reshape") count_one(op);
    }
  }
  count_pair("linear with gradients", linear_with_gradient(make_plain, make_plain),
             linear_with_gradient(make, replicated));
  count_pair("20 operators, forward", forward(make_plain), forward(make));
}

int count() {
  count_operators();
  count_redistributions();
  return 0;
}

int run() {
  at::set_num_threads(1);
  if (absl::GetFlag(FLAGS_count)) return count();
  Gates gates;
  time_operators(gates);
  time_floor(gates);
  time_chain(gates);
  return gates.close();
}

}  // namespace
}  // namespace dtensor::benchmarks

int main(int argc, char** argv) {
  return dtensor::tools::run_program("dispatch", "Times calls on distributed tensors next to the same on plain ones.",
                                     argc, argv, dtensor::benchmarks::run);
}
