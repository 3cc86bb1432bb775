// Ranks of one process that compute at the same time give, bit for bit, what they give one after the other.
#include "dtensor/parallel_ranks.h"

#include <ATen/record_function.h>
#include <torch/library.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/factories.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "propagation/rule_registry.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/intra_op_threads.h"

namespace dtensor {
using namespace internal;

namespace {

using testing::IntraOpThreads;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

// What threads have done for `parallel_ranks_test::note`.
struct Notes {
  std::mutex mutex;
  std::set<std::thread::id> threads;
  int calls = 0, nested = 0, with_gradients = 0, in_inference = 0, plain = 0;
  std::set<int64_t> fails;  // ranks
};
Notes& notes() {
  static Notes& all = *new Notes;
  return all;
}
void forget() {
  notes().threads.clear();
  notes().calls = notes().nested = notes().with_gradients = notes().in_inference = notes().plain = 0;
  notes().fails.clear();
}

Tensor note(const Tensor& x) {
  const std::lock_guard<std::mutex> lock(notes().mutex);
  notes().threads.insert(std::this_thread::get_id());
  ++notes().calls;
  notes().nested += at::in_parallel_region();
  notes().with_gradients += at::GradMode::is_enabled();
  notes().in_inference += c10::InferenceMode::is_enabled();
  notes().plain += c10::impl::tls_is_dispatch_key_excluded(kDTensorKey);
  const auto rank = x.numel() > 0 ? x.flatten()[0].item<int64_t>() : -1;
  TORCH_CHECK(notes().fails.count(rank) == 0, "rank ", rank, " failed");
  return x + 1;
}

Tensor& note_(Tensor& x) {
  note(x);
  return x.add_(1);
}

TORCH_LIBRARY(parallel_ranks_test, m) {
  m.def("note(Tensor x) -> Tensor");
  m.def("note_(Tensor(a!) x) -> Tensor(a!)");
  m.def("draw(Tensor x, *, Generator? generator=None) -> Tensor");
}
TORCH_LIBRARY_IMPL(parallel_ranks_test, CPU, m) {
  m.impl("note", &note);
  m.impl("note_", &note_);
  m.impl("draw", [](const Tensor& x, const std::optional<at::Generator>&) { return note(x); });
}
TORCH_LIBRARY_IMPL(parallel_ranks_test, Meta, m) {
  m.impl("note", [](const Tensor& x) { return at::empty_like(x); });
  m.impl("note_", [](Tensor& x) -> Tensor& { return x; });
  m.impl("draw", [](const Tensor& x, const std::optional<at::Generator>&) { return at::empty_like(x); });
}

// Of every operator that runs.
std::unique_ptr<at::ObserverContext> note_thread(const at::RecordFunction&) {
  const std::lock_guard<std::mutex> lock(notes().mutex);
  notes().threads.insert(std::this_thread::get_id());
  return nullptr;
}

void add_rules() {
  static const bool added = [] {
    OpRule rule;
    rule.per_dim = [](const OpCall&, int64_t) {
      return std::vector<DimStrategy>{{{Shard(0)}, {Shard(0)}}, {{Replicate()}, {Replicate()}}};
    };
    RuleRegistry::instance().add("parallel_ranks_test::note", rule);
    RuleRegistry::instance().add("parallel_ranks_test::note_", rule);
    RuleRegistry::instance().add("parallel_ranks_test::draw", rule);
    return true;
  }();
  static_cast<void>(added);
}

Tensor call_note(const Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("parallel_ranks_test::note", "").typed<Tensor(const Tensor&)>();
  return op.call(x);
}
Tensor draw(const Tensor& x) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("parallel_ranks_test::draw", "")
                             .typed<Tensor(const Tensor&, const std::optional<at::Generator>&)>();
  return op.call(x, std::nullopt);
}
Tensor& call_note_(Tensor& x) {
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("parallel_ranks_test::note_", "").typed<Tensor&(Tensor&)>();
  return op.call(x);
}

// Until the end of the block.
struct ParallelRanks {
  explicit ParallelRanks(bool parallel) { set_parallel_ranks(parallel); }
  ~ParallelRanks() { set_parallel_ranks(false); }
};

DeviceMesh ranks(int64_t n) { return DeviceMesh(World::local(n), {n}, {"x"}); }

// [4 n, 65536 / 4] in rows of the rank that has them.
Tensor numbered_by_rank(int64_t n) {
  return torch::arange(n).repeat_interleave(4).unsqueeze(1).expand({4 * n, 1 << 14}).to(torch::kFloat).contiguous();
}

std::vector<Tensors> parts_of(const Tensors& tensors) {
  std::vector<Tensors> parts;
  for (const Tensor& t : tensors) {
    if (is_dtensor(t)) {
      parts.push_back(DTensor(t).locals());
      parts.back().push_back(torch::tensor(t.sizes()));
    } else {
      parts.push_back({t});
    }
  }
  return parts;
}

void check_equal_bits(const std::vector<Tensors>& a, const std::vector<Tensors>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    REQUIRE(a[i].size() == b[i].size());
    for (size_t r = 0; r < a[i].size(); ++r) {
      CAPTURE(i, r);
      CHECK(a[i][r].strides() == b[i][r].strides());
      CHECK(torch::equal(a[i][r], b[i][r]));
    }
  }
}

}  // namespace

TEST_CASE("ranks compute on several threads at the same time, each with what the caller has set") {
  add_rules();
  forget();
  const IntraOpThreads threads(4);
  CHECK_FALSE(parallel_ranks());
  const ParallelRanks parallel(true);
  CHECK(parallel_ranks());
  const Tensor x = distribute_tensor(numbered_by_rank(8), ranks(8), {Shard(0)});
  {
    const torch::NoGradGuard no_grad;
    CHECK(torch::equal(DTensor(call_note(x)).full_tensor(), numbered_by_rank(8) + 1));
  }
  CHECK(notes().threads.size() == 4);
  CHECK(notes().calls == 8);
  CHECK(notes().nested == 8);
  CHECK(notes().with_gradients == 0);
  CHECK(notes().plain == 8);
  forget();
  {
    const c10::InferenceMode inference;
    call_note(x);
  }
  CHECK(notes().in_inference == 8);
}

TEST_CASE("ranks compute one after the other by default, in small and random operators, and on one thread") {
  add_rules();
  const Tensor x = distribute_tensor(numbered_by_rank(8), ranks(8), {Shard(0)});
  const auto threads_of = [](const Tensor& t, const auto& call) {
    forget();
    call(t);
    CHECK(notes().calls == 8);
    CHECK(notes().nested == 0);
    return notes().threads;
  };
  const std::set<std::thread::id> own = {std::this_thread::get_id()};
  const IntraOpThreads four(4);
  CHECK(threads_of(x, call_note) == own);
  const ParallelRanks parallel(true);
  CHECK(threads_of(distribute_tensor(numbered_by_rank(8).slice(1, 0, 8), ranks(8), {Shard(0)}), call_note) == own);
  CHECK(threads_of(x, draw) == own);
  const IntraOpThreads one(1);
  CHECK(threads_of(x, call_note) == own);
}

TEST_CASE("parallel ranks throw the error of the first one that fails, and count as written") {
  add_rules();
  forget();
  const IntraOpThreads threads(4);
  const ParallelRanks parallel(true);
  Tensor x = distribute_tensor(numbered_by_rank(8), ranks(8), {Shard(0)});
  notes().fails = {2, 3, 7};
  for (int i = 0; i < 5; ++i) CHECK_THROWS_WITH(call_note(x), Catch::Contains("rank 2 failed"));
  const auto writes = [&] { return meta_without_sync(x).storage->writes.load(); };
  const auto before = writes();
  CHECK_THROWS_WITH(call_note_(x), Catch::Contains("rank 2 failed"));
  CHECK(writes() > before);
  forget();
  CHECK(call_note(x).size(0) == 32);
}

TEST_CASE("typed kernels, the boxed one, operators on lists and fused optimizers compute ranks at the same time") {
  const IntraOpThreads threads(4);
  const ParallelRanks parallel(true);
  const torch::NoGradGuard no_grad;
  const Tensor a = distribute_tensor(numbered_by_rank(8), ranks(8), {Shard(0)}), b = a.clone();
  Tensors params = {a.clone()}, gradients = {b}, first = {a.clone()}, second = {a.clone()}, steps = {torch::ones({})};
  const std::map<std::string, std::function<void()>> calls = {
      {"typed", [&] { a.add(b); }},
      {"typed, in place", [&] { b.mul_(2); }},
      {"composite", [&] { torch::softmax(a, 1); }},
      {"boxed", [&] { a.cumsum(1); }},
      {"on lists",
       [&] {
         torch::_foreach_mul({a, b}, 2);
       }},
      {"fused optimizer", [&] {
         torch::_fused_adamw_(params, gradients, first, second, {}, steps, 0.01, 0.9, 0.99, 0.1, 1e-8, false, false);
       }}};
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    call();  // decided
    forget();
    const auto handle = at::addGlobalCallback(at::RecordFunctionCallback(&note_thread));
    call();
    at::removeCallback(handle);
    CHECK(notes().threads.size() == 4);
  }
}

TEST_CASE("operators give the same bits on parallel ranks as on one thread") {
  const DeviceMesh mesh = ranks(7);  // 1024 rows: 147 on most, 142 on the last
  const auto shards = [&](const Tensor& t, int64_t dim) { return distribute_tensor(t, mesh, {Shard(dim)}); };
  torch::manual_seed(3);
  const Tensor a = shards(torch::randn({1024, 512}), 0), b = shards(torch::randn({1024, 512}), 0);
  const Tensor w = shards(torch::randn({512, 512}), 1), v = shards(torch::randn({512, 512}), 0);
  const Tensor mask = shards(torch::rand({1024, 512}).gt(0.5), 0);
  const Tensor ids = shards(torch::randint(512, {1024, 300}), 0);
  const Tensor image = shards(torch::randn({14, 8, 48, 48}), 0),
               kernel = distribute_tensor(torch::randn({8, 8, 3, 3}), mesh, {Replicate()});
  const std::map<std::string, std::function<Tensors()>> calls = {
      {"add",
       [&] {
         return Tensors{a + b, a.add(b, 2), a * 3};
       }},
      {"sum", [&] { return Tensors{a.sum(), a.sum(0), a.sum(1), a.mean(), a.var(1), a.norm()}; }},
      {"mm",
       [&] {
         return Tensors{a.mm(v), a.mm(w), a.t().mm(b)};
       }},
      {"functions",
       [&] {
         return Tensors{a.exp(), torch::gelu(a), a.tanh(), torch::where(mask, a, b)};
       }},
      {"softmax",
       [&] {
         return Tensors{a.softmax(1), a.log_softmax(1), torch::layer_norm(a, {512})};
       }},
      {"linear",
       [&] {
         return Tensors{torch::linear(a, w), torch::matmul(a, v)};
       }},
      {"gather",
       [&] {
         return Tensors{a.gather(1, ids), torch::embedding(v, ids), std::get<0>(a.sort(1)), a.cumsum(1)};
       }},
      {"lists", [&] { return a.split(100, 1); }},
      {"several results",
       [&] {
         return Tensors{std::get<0>(a.max(1)), std::get<1>(a.topk(5, 1))};
       }},
      {"views",
       [&] {
         return Tensors{a.t(), a.view({1024, 8, 64}).transpose(1, 2).contiguous(), a.expand({2, -1, -1})};
       }},
      {"convolution",
       [&] {
         return Tensors{torch::conv2d(image, kernel), torch::max_pool2d(image, 2)};
       }},
      {"writes",
       [&] {
         Tensor c = a.clone(), d = b.clone();
         c.add_(b).mul_(2).relu_();
         d.masked_fill_(mask, 0).addcmul_(a, b);
         return Tensors{c, d};
       }},
      {"lists of tensors",
       [&] {
         const Tensors all = {a, b, v}, others = {b, a, w};
         Tensors results = torch::_foreach_mul(all, 2);
         torch::_foreach_add_(results, all, 3);
         const Tensors norms = torch::_foreach_norm(all);
         results.insert(results.end(), norms.begin(), norms.end());
         return results;
       }},
      {"random",
       [&] {
         torch::manual_seed(5);
         const Tensor heads = a.view({1024, 8, 64});
         return Tensors{torch::dropout(a, 0.5, true), torch::rand_like(a),
                        torch::scaled_dot_product_attention(heads, heads, heads, {}, 0.5)};
       }},
  };
  for (const auto& [name, call] : calls) {
    CAPTURE(name);
    for (const bool gradients : {true, false}) {
      const torch::AutoGradMode mode(gradients);
      const IntraOpThreads one(1);
      const auto expected = parts_of(call());
      const IntraOpThreads four(4);
      const ParallelRanks parallel(true);
      for (int i = 0; i < 2; ++i) check_equal_bits(parts_of(call()), expected);  // decided now, and from the cache
    }
  }
}

TEST_CASE("steps of training give the same bits on parallel ranks as on one thread") {
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  const auto train = [&](bool fused) {
    torch::manual_seed(7);
    const auto weight = [&](std::vector<int64_t> sizes, Placements placements) {
      return distribute_tensor(torch::randn(sizes) / 16, mesh, std::move(placements)).requires_grad_();
    };
    const Tensor up = weight({256, 512}, {Replicate(), Shard(1)}), down = weight({512, 256}, {Replicate(), Shard(0)});
    const Tensor scale = weight({256}, {Replicate(), Replicate()});
    const Tensor x = distribute_tensor(torch::randn({1024, 256}), mesh, {Shard(0), Replicate()});
    Tensors params = {up, down, scale}, first, second, steps;
    for (const Tensor& p : params) {
      first.push_back(torch::zeros_like(p));
      second.push_back(torch::zeros_like(p));
      steps.push_back(torch::zeros({}));
    }
    torch::optim::AdamW adam(params, torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      for (Tensor& p : params) p.mutable_grad() = Tensor();
      const Tensor y = torch::layer_norm(x + torch::gelu(x.mm(up)).mm(down), {256}, scale);
      (y * y).mean().backward();
      if (!fused) {
        adam.step();
        continue;
      }
      const torch::NoGradGuard no_grad;
      Tensors gradients;
      for (const Tensor& p : params) gradients.push_back(p.grad());
      torch::_foreach_add_(steps, 1);
      torch::_fused_adamw_(params, gradients, first, second, {}, steps, 0.01, 0.9, 0.99, 0.1, 1e-8, false, false);
    }
    Tensors results = params;
    for (const Tensor& p : params) results.push_back(p.grad());
    return parts_of(results);
  };
  for (const bool fused : {false, true}) {
    CAPTURE(fused);
    const IntraOpThreads one(1);
    const auto expected = train(fused);
    const IntraOpThreads four(4);
    const ParallelRanks parallel(true);
    check_equal_bits(train(fused), expected);
  }
}

}  // namespace dtensor
