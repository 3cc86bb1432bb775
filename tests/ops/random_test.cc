// Random numbers: the same tensor on every mesh and in every layout, with the right statistics.
#include "ops/random/random.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/rand_like.h>
#include <ATen/ops/randint_like.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>

#include "dtensor/from_local.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "observe/comm_debug_mode.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/differential.h"

namespace dtensor::testing {
using namespace internal;

namespace {

using Tensors = std::vector<at::Tensor>;
using Values = std::vector<c10::IValue>;

void seed(uint64_t s) { at::manual_seed(s); }

const std::vector<DeviceMesh>& meshes() {
  static const auto* const all =
      new std::vector<DeviceMesh>{DeviceMesh(World::local(1), {1}), DeviceMesh(World::local(4), {4}),
                                  DeviceMesh(World::local(4), {2, 2}), DeviceMesh(World::local(3), {3})};
  return *all;
}

std::vector<Placements> layouts(const DeviceMesh& mesh, int64_t dims) {
  std::vector<Placement> options = {Replicate()};
  for (int64_t d = 0; d < dims; ++d) {
    options.push_back(Shard(d));
    options.push_back(StridedShard(d, 2));
  }
  std::vector<Placements> all = {{}};
  for (int64_t d = 0; d < mesh.ndim(); ++d) {
    std::vector<Placements> longer;
    for (const auto& prefix : all) {
      for (const auto& p : options) {
        longer.push_back(prefix);
        longer.back().push_back(p);
      }
    }
    all = longer;
  }
  return all;
}

// Distance between the empirical distribution and a continuous one (Kolmogorov-Smirnov), times sqrt(n): beyond 1.95
// with probability 0.001.
double ks(at::Tensor sample, const std::function<double(double)>& cdf) {
  std::vector<double> x(sample.numel());
  sample = sample.to(at::kDouble).contiguous().view(-1);
  std::copy_n(sample.const_data_ptr<double>(), x.size(), x.begin());
  std::sort(x.begin(), x.end());
  double worst = 0;
  const double n = static_cast<double>(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    worst = std::max({worst, std::abs(cdf(x[i]) - i / n), std::abs(cdf(x[i]) - (i + 1) / n)});
  }
  return worst * std::sqrt(n);
}

at::Tensor sharded_zeros(std::vector<int64_t> shape, c10::ScalarType dtype = at::kDouble) {
  return lay_out(at::zeros(shape, dtype), meshes()[1], {Shard(0)});
}

struct Row {
  const char* op;
  Values args;
  c10::ScalarType dtype = at::kDouble;
};

const std::vector<Row>& table() {
  static const auto* const rows = new std::vector<Row>{
      {"aten::uniform_", {-1.0, 3.0}},
      {"aten::uniform_", {0.0, 1.0}, at::kHalf},
      {"aten::uniform_", {0.0, 1.0}, at::kComplexDouble},
      {"aten::normal_", {1.0, 2.0}},
      {"aten::normal_", {0.0, 1.0}, at::kFloat},
      {"aten::normal_", {0.0, 1.0}, at::kComplexDouble},
      {"aten::bernoulli_.float", {0.3}},
      {"aten::bernoulli_.float", {0.3}, at::kBool},
      {"aten::exponential_", {2.0}},
      {"aten::geometric_", {0.25}, at::kLong},
      {"aten::log_normal_", {0.0, 0.5}},
      {"aten::cauchy_", {1.0, 2.0}},
      {"aten::random_", {}, at::kInt},
      {"aten::random_", {}, at::kBFloat16},
      {"aten::random_", {}, at::kBool},
      {"aten::random_.to", {10}, at::kLong},
      {"aten::random_.from", {-5, 6}, at::kDouble},
      {"aten::random_.from", {-5, c10::IValue()}, at::kLong},
  };
  return *rows;
}

at::Tensor fill(const Row& row, const at::Tensor& t) {
  Values args = {t};
  args.insert(args.end(), row.args.begin(), row.args.end());
  return call_op(row.op, args)[0];
}

}  // namespace

TEST_CASE("Philox gives the published values", "[random]") {
  // Random123's kat_vectors: philox4x32 10.
  const auto zero = philox4x32(0, 0, 0);
  CHECK(zero.w[0] == 0x6627e8d5u);
  CHECK(zero.w[1] == 0xe169c58du);
  CHECK(zero.w[2] == 0xbc57ac4cu);
  CHECK(zero.w[3] == 0x9b00dbd8u);
  const auto ones = philox4x32(~0ull, ~0ull, ~0ull);
  CHECK(ones.w[0] == 0x408f276du);
  CHECK(ones.w[1] == 0x41c83b0eu);
  CHECK(ones.w[2] == 0xa20bc7c6u);
  CHECK(ones.w[3] == 0x6d5451fdu);
}

TEST_CASE("LT-2: the same numbers on every mesh and in every layout, bit for bit", "[random]") {
  for (const auto& row : table()) {
    CAPTURE(row.op, row.dtype);
    seed(17);
    const at::Tensor zeros = at::zeros({5, 3}, row.dtype);
    const auto expected = full_tensor(fill(row, lay_out(zeros, meshes()[0], {Replicate()})));
    for (const auto& mesh : meshes()) {
      for (const auto& placements : layouts(mesh, 2)) {
        CAPTURE(mesh.to_string(), to_string(placements));
        seed(17);
        CHECK(difference(fill(row, lay_out(zeros, mesh, placements)), expected, 0) == std::nullopt);
      }
    }
  }
}

TEST_CASE("LT-2: every operator draws a new key; a seed repeats them", "[random]") {
  seed(3);
  const auto a = full_tensor(sharded_zeros({6, 4}).uniform_());
  const auto b = full_tensor(sharded_zeros({6, 4}).uniform_());
  CHECK_FALSE(a.equal(b));
  CHECK((a == b).sum().item<int64_t>() == 0);
  seed(3);
  CHECK(a.equal(full_tensor(sharded_zeros({6, 4}).uniform_())));
  CHECK(b.equal(full_tensor(sharded_zeros({6, 4}).uniform_())));
  auto generator = at::detail::createCPUGenerator(9);
  const auto c = full_tensor(sharded_zeros({6, 4}).uniform_(0, 1, generator));
  generator.set_current_seed(9);
  CHECK(c.equal(full_tensor(sharded_zeros({6, 4}).uniform_(0, 1, generator))));
  CHECK_FALSE(a.equal(c));
}

TEST_CASE("LT-2: shards do not repeat each other", "[random]") {
  const auto x = sharded_zeros({8, 5}).uniform_();
  const auto& locals = meta_for_read(x).locals;
  for (size_t i = 0; i < locals.size(); ++i) {
    for (size_t j = 0; j < i; ++j) CHECK((locals[i] == locals[j]).sum().item<int64_t>() == 0);
  }
}

TEST_CASE("Random numbers: statistics", "[random]") {
  seed(2026);
  const std::vector<int64_t> shape = {1000, 50};
  const auto sample = [&](const Row& row) { return full_tensor(fill(row, sharded_zeros(shape, row.dtype))); };
  CHECK(ks(sample({"aten::uniform_", {-1.0, 3.0}}), [](double x) { return (x + 1) / 4; }) < 1.95);
  CHECK(ks(sample({"aten::uniform_", {0.0, 1.0}, at::kFloat}), [](double x) { return x; }) < 1.95);
  const auto parts = at::view_as_real(sample({"aten::uniform_", {-1.0, 3.0}, at::kComplexDouble}));
  CHECK(ks(parts, [](double x) { return (x + 1) / 4; }) < 1.95);
  CHECK(ks(sample({"aten::normal_", {1.0, 2.0}}),
           [](double x) { return std::erfc((1 - x) / (2 * std::sqrt(2.0))) / 2; }) < 1.95);
  CHECK(ks(sample({"aten::exponential_", {2.0}}), [](double x) { return 1 - std::exp(-2 * x); }) < 1.95);
  CHECK(ks(sample({"aten::cauchy_", {1.0, 2.0}}), [](double x) { return std::atan((x - 1) / 2) / M_PI + 0.5; }) < 1.95);
  CHECK(ks(sample({"aten::log_normal_", {0.0, 0.5}}),
           [](double x) { return std::erfc(-std::log(x) / (0.5 * std::sqrt(2.0))) / 2; }) < 1.95);
  const double n = 50000;
  const double p = sample({"aten::bernoulli_.float", {0.3}}).mean().item<double>();
  CHECK(std::abs(p - 0.3) < 4 * std::sqrt(0.3 * 0.7 / n));
  const auto trials = sample({"aten::geometric_", {0.25}});
  CHECK(std::abs(trials.mean().item<double>() - 4) < 4 * std::sqrt(12 / n));
  CHECK(trials.min().item<double>() == 1);
  const auto digits = sample({"aten::random_.to", {10}, at::kLong});
  for (int d = 0; d < 10; ++d) {
    CHECK(std::abs((digits == d).to(at::kDouble).mean().item<double>() - 0.1) < 4 * std::sqrt(0.09 / n));
  }
  const auto complex = sample({"aten::normal_", {0.0, 1.0}, at::kComplexDouble});
  CHECK(std::abs(complex.abs().pow(2).mean().item<double>() - 1) < 0.03);
  const auto x = sample({"aten::normal_", {0.0, 1.0}});
  CHECK(std::abs((x.narrow(0, 0, 999) * x.narrow(0, 1, 999)).mean().item<double>()) < 4 / std::sqrt(n));  // neighbours
}

TEST_CASE("Random numbers: intervals are half open in every dtype", "[random]") {
  for (const auto dtype : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16}) {
    const auto x = full_tensor(sharded_zeros({1000, 50}, dtype).uniform_(1, 2));
    CHECK(x.min().item<double>() >= 1);
    CHECK(x.max().item<double>() < 2);
  }
  const auto bytes = full_tensor(sharded_zeros({1000}, at::kByte).random_());
  CHECK(bytes.max().item<int64_t>() > 250);
  const auto range = full_tensor(sharded_zeros({1000}, at::kLong).random_(-2, 3));
  CHECK(range.min().item<int64_t>() == -2);
  CHECK(range.max().item<int64_t>() == 2);
}

TEST_CASE("Random numbers: forms that return a new tensor", "[random]") {
  for (const Placement& p : {Replicate(), Shard(0), Partial()}) {
    const auto x = lay_out(at::rand({400, 5}, at::kDouble), meshes()[1], {p});
    const auto layout = Placements{p.is_partial() ? Replicate() : p};
    for (const auto& y :
         {at::rand_like(x), at::randn_like(x), at::randint_like(x, 3, 7), call_op("aten::normal_functional", {x})[0]}) {
      CHECK(meta_for_read(y).spec->placements() == layout);
      CHECK(difference(y, full_tensor(y)) == std::nullopt);
    }
    CHECK(std::abs(at::randn_like(x).mean().item<double>()) < 0.1);
    CHECK(at::randint_like(x, 3, 7).min().item<double>() == 3);
    CHECK(at::rand_like(x, x.options().dtype(at::kFloat)).scalar_type() == at::kFloat);
    const auto shifted = call_op("aten::normal.Tensor_float", {x * 0 + 5, 0.5})[0];
    CHECK(std::abs(shifted.mean().item<double>() - 5) < 0.1);
    const auto both = call_op("aten::normal.Tensor_Tensor", {x * 0 + 5, x * 0})[0];
    CHECK(difference(both, at::full({400, 5}, 5.0, at::kDouble)) == std::nullopt);
  }
}

TEST_CASE("bernoulli with a probability per element", "[random]") {
  const auto probability = at::rand({400, 5}, at::kDouble);
  std::optional<at::Tensor> expected;
  for (const auto& mesh : {meshes()[0], meshes()[1], meshes()[3]}) {
    for (const Placement& p : {Replicate(), Shard(0), Shard(1), Partial()}) {
      seed(5);
      const auto y = call_op("aten::bernoulli", {lay_out(probability, mesh, {p})})[0];
      if (!expected) expected = full_tensor(y);
      CHECK(difference(y, *expected) == std::nullopt);
    }
  }
  CHECK(std::abs(expected->mean().item<double>() - probability.mean().item<double>()) < 0.05);
  auto x = sharded_zeros({400, 5});
  x.bernoulli_(lay_out(at::zeros({5}, at::kDouble), meshes()[1], {Shard(0)}));
  CHECK(x.sum().item<double>() == 0);
  CHECK_THROWS_AS(x.bernoulli_(lay_out(at::full({5}, 1.5, at::kDouble), meshes()[1], {Shard(0)})), c10::Error);
}

TEST_CASE("Dropout: backward uses the mask of forward", "[random]") {
  for (const Placement& p : {Replicate(), Shard(0), Partial()}) {
    auto x = lay_out(at::rand({40, 50}, at::kDouble) + 1, meshes()[1], {p}).requires_grad_();
    const auto results = call_op("aten::native_dropout", {x, 0.25, true});
    const auto y = full_tensor(results[0].detach()), full = full_tensor(x.detach());
    const auto kept = y != 0;
    CHECK(kept.equal(full_tensor(results[1])));
    CHECK(y.allclose(full * kept / 0.75));
    CHECK(std::abs(kept.to(at::kDouble).mean().item<double>() - 0.75) < 0.06);
    results[0].sum().backward();
    CHECK(difference(x.grad(), kept.to(at::kDouble) / 0.75) == std::nullopt);
  }
  const auto x = sharded_zeros({40, 50}).fill_(1);
  CHECK(difference(call_op("aten::native_dropout", {x, 0.25, false})[0], at::ones({40, 50}, at::kDouble)) ==
        std::nullopt);
  CHECK(call_op("aten::native_dropout", {x, 1.0, true})[0].sum().item<double>() == 0);
  const auto y = call_op("aten::dropout", {x, 0.5, true})[0];
  CHECK(std::abs(y.mean().item<double>() - 1) < 0.15);
}

struct Sampling {
  int64_t samples;
  bool replacement;
};
constexpr Sampling kSamplings[] = {{1, false}, {1, true}, {4, false}, {9, true}};

at::Tensor multinomial(const at::Tensor& weights, Sampling s) {
  return call_op("aten::multinomial", {weights, s.samples, s.replacement})[0];
}

TEST_CASE("multinomial draws the same on every mesh, and without communication if rows are split", "[random]") {
  seed(4);
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{{5, 6}, {2, 7}, {6}, {0, 6}}) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
      const auto weights = at::rand(shape, at::kDouble).to(dtype);
      for (const auto& s : kSamplings) {
        seed(11);
        const auto expected = full_tensor(multinomial(lay_out(weights, meshes()[0], {Replicate()}), s));
        auto sizes = shape;
        sizes.back() = s.samples;
        CHECK(expected.sizes() == at::IntArrayRef(sizes));
        for (const auto& mesh : meshes()) {
          for (const auto& placements : layouts(mesh, weights.dim())) {
            CAPTURE(shape, dtype, s.samples, s.replacement, mesh.shape(), placements);
            const auto given = lay_out(weights, mesh, placements);
            const bool by_rows = std::none_of(placements.begin(), placements.end(),
                                              [&](const Placement& p) { return p.is_sharded_on(weights.dim() - 1); });
            seed(11);
            CommDebugMode comm;
            const auto y = multinomial(given, s);
            if (by_rows) {
              CHECK(comm.total() == 0);
              CHECK(spec_of(y)->placements() == spec_of(given)->placements());
            }
            CHECK(difference(y, expected) == std::nullopt);
          }
        }
      }
    }
  }
}

TEST_CASE("multinomial draws categories in proportion to their weights", "[random]") {
  constexpr int64_t kRows = 4000;
  const auto row = at::tensor({1.0, 0.0, 3.0, 4.0, 0.0, 2.0}), share = row / row.sum();
  const auto weights = lay_out(row.expand({kRows, 6}).contiguous(), meshes()[1], {Shard(0)});
  seed(3);
  for (const Sampling s : {Sampling{1, false}, Sampling{6, true}}) {
    const auto drawn = full_tensor(multinomial(weights, s)).view(-1);
    const auto seen = at::bincount(drawn, {}, 6).to(at::kDouble) / drawn.numel();
    CAPTURE(seen);
    CHECK(seen.allclose(share, 0, 0.03));
    CHECK(seen[1].item<double>() == 0);
    CHECK(seen[4].item<double>() == 0);
  }
  const auto orders = full_tensor(multinomial(weights, {4, false}));
  CHECK(std::get<0>(orders.sort(1)).eq(at::tensor({0, 2, 3, 5})).all().item<bool>());
  // After a 3, the others' weights are 1, 3, 2.
  const auto second = orders.select(1, 1).masked_select(orders.select(1, 0).eq(3));
  CHECK(std::abs(second.eq(2).to(at::kDouble).mean().item<double>() - 0.5) < 0.05);
}

TEST_CASE("multinomial rejects invalid distributions", "[random]") {
  for (const auto& s : kSamplings) {
    const auto draw = [&](double value, int64_t from) {
      auto weights = at::ones({4, 9}, at::kDouble);
      weights.select(0, 2).narrow(0, from, 9 - from).fill_(value);
      multinomial(lay_out(weights, meshes()[1], {Shard(0)}), s);
    };
    CHECK_THROWS_WITH(draw(0, 0), Catch::Contains("sum of probabilities <= 0"));
    CHECK_THROWS_WITH(draw(-1, 8), Catch::Contains("element < 0"));
    CHECK_THROWS_WITH(draw(std::nan(""), 8), Catch::Contains("element < 0"));
    CHECK_THROWS_WITH(draw(INFINITY, 8), Catch::Contains("element < 0"));
    CHECK_NOTHROW(draw(0, 4));
    // Ranks that share a row exchange as usual, and then all throw.
    const auto collectives = [&](double value) {
      const auto weights = at::ones({4, 64}, at::kDouble);
      weights.select(0, 2).fill_(value);
      const auto shared = lay_out(weights, meshes()[1], {Shard(1)});
      CommDebugMode comm;
      if (value > 0 && value < INFINITY) {
        multinomial(shared, s);
      } else {
        CHECK_THROWS_WITH(multinomial(shared, s), Catch::Contains(value == 0 ? "<= 0" : "element < 0"));
      }
      return comm.total();
    };
    const int64_t usual = collectives(1);
    CHECK(usual > 0);
    for (const double value : {0., -1., std::nan(""), static_cast<double>(INFINITY)})
      CHECK(collectives(value) == usual);
  }
  CHECK_THROWS_WITH(multinomial(sharded_zeros({4, 3}), {4, false}), Catch::Contains("without replacement"));
  CHECK_THROWS_WITH(multinomial(sharded_zeros({4, 3}, at::kLong), {1, false}), Catch::Contains("floating-point"));
}

TEST_CASE("A CUDA device draws the values of the CPU", "[random][cuda]") {
  if (!at::globalContext().hasCUDA()) {
    WARN("SKIPPED: no CUDA device");
    return;
  }
  const DeviceMesh gpu(World::local(4, c10::Device("cuda:0")), {4});
  for (const auto& row : table()) {
    const at::Tensor zeros = at::zeros({5, 3}, row.dtype);
    CAPTURE(row.op, row.dtype);
    seed(17);
    const auto expected = full_tensor(fill(row, lay_out(zeros, meshes()[0], {Replicate()})));
    for (const Placement& p : {Shard(0), StridedShard(1, 2)}) {
      seed(17);
      const auto actual = full_tensor(fill(row, lay_out(zeros.to(at::kCUDA), gpu, {p}))).cpu();
      CHECK(actual.allclose(expected, 1e-3, 1e-6));
    }
  }
}

TEST_CASE("Random operators: rejected arguments, and unaffected plain tensors", "[random]") {
  auto x = sharded_zeros({5, 3});
  CHECK_THROWS_WITH(x.uniform_(2, 1), Catch::Contains("from=2 > to=1"));
  CHECK_THROWS_WITH(x.normal_(0, -1), Catch::Contains("std >= 0"));
  CHECK_THROWS_WITH(x.bernoulli_(1.5), Catch::Contains("p to be in [0, 1]"));
  CHECK_THROWS_WITH(x.random_(3, 3), Catch::Contains("less than 'to'"));
  CHECK_THROWS_AS(sharded_zeros({5}, at::kLong).uniform_(), c10::NotImplementedError);

  // An abstract world draws nothing.
  const DeviceMesh nowhere(World::abstract(4), {4});
  FromLocalOptions options;
  options.shape = std::vector<int64_t>{8, 3};
  auto ghost = from_local({}, nowhere, {Shard(0)}, options);
  seed(1);
  ghost.uniform_();
  CHECK(at::rand_like(ghost).sizes() == ghost.sizes());
  const auto a = at::rand({3}, at::kDouble);
  seed(1);
  CHECK(a.equal(at::rand({3}, at::kDouble)));
}

}  // namespace dtensor::testing
