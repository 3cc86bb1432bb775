// KVCache and SequenceSlots: attention over cached keys and values, for sequences that join and leave, is the attention
// of each sequence by itself on one device.
#include "dtensor/kv_cache.h"

#include <torch/nn.h>

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "dtensor/dtensor.h"
#include "tests/testing/catch_torch.h"
#include "tests/testing/error_text.h"

namespace dtensor {
namespace {

using testing::error_text;
using torch::Tensor;

Tensor longs(const std::vector<int64_t>& values) { return torch::tensor(values, torch::kLong); }

TEST_CASE("a step of three slots has the positions, targets, mask and last columns of each", "[kv_cache]") {
  SequenceSlots slots(3, 5);
  REQUIRE(slots.join() == 0);
  REQUIRE(slots.join() == 1);
  slots.advance(slots.step({4, 1, 0}));
  const GenerationStep step = slots.step({1, 2, 0});
  CHECK(torch::equal(step.positions, longs({4, 4, 1, 2, 0, 1}).view({3, 2})));
  CHECK(torch::equal(step.targets, longs({4, 5, 1, 2, 5, 5}).view({3, 2})));
  CHECK(torch::equal(step.last, longs({0, 1, 0})));
  CHECK(step.mask.sizes() == c10::IntArrayRef({3, 1, 2, 5}));
  CHECK(torch::equal(step.mask.sum(-1).squeeze(1), step.positions + 1));
  CHECK(slots.length(1) == 1);  // step() changes nothing
  slots.advance(step);
  CHECK(slots.length(0) == 5);
  CHECK(slots.length(1) == 3);
  CHECK_FALSE(slots.length(2));
  slots.leave(0);
  CHECK_FALSE(slots.length(0));
  CHECK(slots.join() == 0);
  CHECK(slots.length(0) == 0);
  CHECK(slots.join() == 2);
  CHECK_FALSE(slots.join());
}

TEST_CASE("steps that do not fit the slots are errors that name slot and number", "[kv_cache]") {
  using Catch::Contains;
  CHECK_THAT(error_text([] { SequenceSlots(0, 4); }), Contains("slots is 0"));
  CHECK_THAT(error_text([] { SequenceSlots(1, 0); }), Contains("capacity is 0"));
  SequenceSlots slots(2, 4);
  slots.join();
  const auto text = [&](const std::vector<int64_t>& counts, int64_t columns) {
    return error_text([&] { slots.step(counts, columns); });
  };
  CHECK_THAT(text({1}, 0), Contains("1 counts for 2 slots"));
  CHECK_THAT(text({}, 0), Contains("0 columns"));
  CHECK_THAT(text({0, 0}, 0), Contains("0 columns"));
  CHECK_THAT(text({3, 0}, 2), Contains("slot 0 is 3: 0 to 2"));
  CHECK_THAT(text({-1, 0}, 2), Contains("slot 0 is -1"));
  CHECK_THAT(text({0, 1}, 1), Contains("slot 1 is free"));
  CHECK_THAT(text({5, 0}, 0), Contains("the capacity is 4"));
  CHECK_THAT(error_text([&] { slots.leave(1); }), Contains("slot 1 is free"));
  CHECK_THAT(error_text([&] { slots.leave(2); }), Contains("0 to 1"));
  const GenerationStep step = slots.step({3, 0});
  slots.advance(step);
  CHECK_THAT(error_text([&] { slots.advance(step); }), Contains("has 3 tokens and would get 3 more"));
  CHECK(slots.length(0) == 3);
}

constexpr int64_t kSize = 3;

// Query, key and value of one token of a sequence, [heads, kSize].
Tensor vectors(int64_t sequence, int64_t token, int64_t kind, int64_t heads) {
  return (torch::arange(heads * kSize, torch::kDouble) + (100 * sequence + 10 * token + kind))
      .sin()
      .view({heads, kSize});
}

Tensor vectors_of(int64_t sequence, int64_t tokens, int64_t kind, int64_t heads) {
  std::vector<Tensor> all;
  for (int64_t t = 0; t < tokens; ++t) all.push_back(vectors(sequence, t, kind, heads));
  return torch::stack(all, 1);  // [heads, tokens, size]
}

// Attention of the last token of a sequence by itself.
Tensor expected_attention(int64_t sequence, int64_t tokens, int64_t heads) {
  const Tensor q = vectors(sequence, tokens - 1, 0, heads).unsqueeze(1), k = vectors_of(sequence, tokens, 1, heads),
               v = vectors_of(sequence, tokens, 2, heads);
  return torch::softmax(q.matmul(k.transpose(1, 2)) / std::sqrt(double{kSize}), -1).matmul(v).squeeze(1);
}

// A batch whose slots run sequences, on a mesh or not.
struct Batch {
  int64_t heads;
  DeviceMesh mesh;  // undefined: plain
  Placements placements;
  SequenceSlots slots;
  KVCache cache;
  std::map<int64_t, int64_t> sequence_of;  // slot -> sequence

  int64_t join(int64_t sequence) {
    const int64_t slot = slots.join().value();
    sequence_of[slot] = sequence;
    return slot;
  }
  void leave(int64_t slot) {
    slots.leave(slot);
    sequence_of.erase(slot);
  }

  // One step; checks the attention of the last new token of each slot.
  void step(const std::vector<int64_t>& counts, int64_t columns = 0) {
    std::optional<MeshScope> scope;
    if (mesh.defined()) scope.emplace(mesh);
    const GenerationStep now = slots.step(counts, columns);
    const auto of_all = [&](int64_t kind) {
      const PlainFactories plain;
      Tensor t = torch::full({slots.size(), heads, now.columns(), kSize}, 1e3, torch::kDouble);  // padding
      for (const auto& [slot, sequence] : sequence_of) {
        for (int64_t c = 0; c < counts[slot]; ++c)
          t.index_put_({slot, torch::indexing::Slice(), c},
                       vectors(sequence, slots.length(slot).value() + c, kind, heads));
      }
      return mesh.defined() ? distribute_tensor(t, mesh, placements, std::nullopt) : t;
    };
    const Tensor q = of_all(0), k = of_all(1), v = of_all(2);
    Tensor y;
    {
      CommDebugMode comm;
      const auto [keys, values] = cache.update(now, k, v);
      CHECK(comm.total() == 0);
      REQUIRE(keys.sizes() == c10::IntArrayRef({slots.size(), heads, slots.capacity(), kSize}));
      const Tensor scores = q.matmul(keys.transpose(-2, -1)) / std::sqrt(double{kSize});
      y = torch::softmax(scores.masked_fill(now.mask.logical_not(), -std::numeric_limits<double>::infinity()), -1)
              .matmul(values);
      if (heads % 2 == 0) CHECK(comm.total() == 0);  // a matmul of fewer heads than ranks moves them
    }
    slots.advance(now);
    scope.reset();
    const Tensor whole = mesh.defined() ? full_tensor(y) : y;
    for (const auto& [slot, sequence] : sequence_of) {
      if (counts[slot] == 0) continue;
      CAPTURE(slot, sequence, slots.length(slot).value());
      const Tensor expected = expected_attention(sequence, slots.length(slot).value(), heads);
      CHECK(torch::allclose(whole[slot].select(1, counts[slot] - 1), expected, 1e-12, 1e-12));
    }
  }
};

void run_sequences(Batch batch) {
  const int64_t a = batch.join(1);
  batch.step({3, 0, 0}, 4);
  const int64_t b = batch.join(2);
  batch.step({1, 4, 0}, 4);  // one goes on while another one begins
  batch.step({1, 1, 0});
  batch.leave(a);
  batch.step({0, 1, 0});
  CHECK(batch.join(3) == a);  // in the slot of a longer one
  batch.join(4);
  batch.step({2, 0, 1}, 4);
  const auto misses = [&] { return batch.mesh.defined() ? strategy_cache(batch.mesh.world()).stats().misses : 0; };
  const auto before = misses();
  for (int64_t i = 0; i < 3; ++i) batch.step({1, batch.slots.length(b).value() < 8 ? 1 : 0, 1});
  CHECK(misses() == before);
}

TEST_CASE("sequences that join and leave get the attention of each by itself, without communication or cache misses",
          "[kv_cache]") {
  const at::NoGradGuard no_grad;
  run_sequences({2, DeviceMesh(), {}, SequenceSlots(3, 8), KVCache(), {}});
  for (const int64_t heads : {1, 3, 4}) {
    CAPTURE(heads);
    const DeviceMesh tp(World::local(2), {2}, {"tp"});
    run_sequences({heads, tp, {Shard(1)}, SequenceSlots(3, 8), KVCache(), {}});
    const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
    run_sequences({heads, mesh, {Shard(0), Shard(1)}, SequenceSlots(3, 8), KVCache(), {}});
    run_sequences({heads, mesh, {Replicate(), Shard(1)}, SequenceSlots(3, 8), KVCache(), {}});
  }
}

TEST_CASE("a cache has the layout of the first keys by slots and heads, or the given one", "[kv_cache]") {
  const at::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(4), {2, 2}, {"dp", "tp"});
  SequenceSlots slots(2, 4);
  slots.join();
  GenerationStep step;
  {
    const MeshScope scope(mesh);
    step = slots.step({2, 0});
  }
  const auto laid_out = [&](KVCache cache, const Placements& placements) {
    const Tensor k = randn({2, 4, 2, 3}, mesh, placements);
    const auto [keys, values] = cache.update(step, k, k);
    CHECK(torch::equal(full_tensor(keys)[0].narrow(1, 0, 2), full_tensor(k)[0]));
    CHECK(torch::equal(full_tensor(values)[0].narrow(1, 2, 2), torch::zeros({4, 2, 3})));
    return DTensor(cache.keys()).placements();
  };
  CHECK(laid_out(KVCache(), {Shard(0), Shard(1)}) == Placements{Shard(0), Shard(1)});
  CHECK(laid_out(KVCache(), {Shard(2), Shard(1)}) == Placements{Replicate(), Shard(1)});
  CHECK(laid_out(KVCache(), {Partial(), Shard(3)}) == Placements{Replicate(), Replicate()});
  CHECK(laid_out(KVCache({Replicate(), Shard(1)}), {Shard(0), Replicate()}) == Placements{Replicate(), Shard(1)});
}

TEST_CASE("clear removes the nan of an earlier sequence in a slot", "[kv_cache]") {
  const at::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  for (const bool distributed : {false, true}) {
    KVCache cache;
    cache.clear(7);  // before the first update() there is nothing
    SequenceSlots slots(2, 4);
    slots.join();
    std::optional<MeshScope> scope;
    if (distributed) scope.emplace(mesh);
    Tensor k = torch::full({2, 2, 1, 3}, NAN);
    if (distributed) k = redistribute(k, {Shard(1)});
    cache.update(slots.step({1, 0}), k, k);
    cache.clear(1);
    const auto has_nan = [&] { return cache.keys().isnan().any().item<bool>(); };
    const auto first = cache.keys().narrow(2, 0, 4);
    CHECK(first.isnan().any().item<bool>());
    cache.clear(0);
    CHECK_FALSE(cache.keys().narrow(2, 0, 4).isnan().any().item<bool>());
    CHECK(cache.values().narrow(2, 0, 4).abs().sum().item<float>() == 0);
    CHECK_FALSE(has_nan());
    CHECK_THAT(error_text([&] { cache.clear(2); }), Catch::Contains("slot is 2: 0 to 1"));
  }
}

TEST_CASE("keys that do not fit the step or the cache are errors, and nothing is written", "[kv_cache]") {
  using Catch::Contains;
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  SequenceSlots slots(2, 4);
  slots.join();
  const GenerationStep step = slots.step({1, 0});
  KVCache cache;
  const Tensor k = torch::ones({2, 3, 1, 5});
  const auto text = [&](const Tensor& key, const Tensor& value) {
    return error_text([&] { cache.update(step, key, value); });
  };
  CHECK_THAT(text(torch::ones({2, 3, 2, 5}), k), Contains("k has the shape [2, 3, 2, 5]"));
  CHECK_THAT(text(k, torch::ones({3, 3, 1, 5})), Contains("v has the shape [3, 3, 1, 5]"));
  CHECK_THAT(text(torch::ones({2, 3, 1, 5}, torch::requires_grad()), k), Contains("requires a gradient"));
  CHECK_FALSE(cache.keys().defined());
  cache.update(step, k, k);
  CHECK_THAT(text(2 * k, torch::ones({2, 4, 1, 5})), Contains("the cache was made for"));
  CHECK_THAT(text(2 * k, k.to(torch::kDouble)), Contains("the cache was made for"));
  CHECK_THAT(text(distribute_tensor(2 * k, mesh), k), Contains("the first was plain"));
  SequenceSlots longer(2, 9);
  CHECK_THAT(error_text([&] { cache.update(longer.step({0, 0}, 1), 2 * k, k); }), Contains("the capacity 4"));
  CHECK(cache.keys().max().item<float>() == 1);
}

TEST_CASE("keys, values and a step that are not on one mesh are errors, and the cache is usable", "[kv_cache]") {
  using Catch::Contains;
  const at::NoGradGuard no_grad;
  const DeviceMesh mesh(World::local(2), {2}, {"tp"});
  SequenceSlots slots(2, 4);
  slots.join();
  const GenerationStep plain_step = slots.step({1, 0});
  const MeshScope scope(mesh);
  const GenerationStep step = slots.step({1, 0});
  const Tensor k = ones({2, 4, 1, 3}, mesh, {Shard(1)}), plain = full_tensor(k);
  KVCache cache;
  const auto text = [&](const GenerationStep& s, const Tensor& key, const Tensor& value) {
    return error_text([&] { cache.update(s, key, value); });
  };
  CHECK_THAT(text(step, k, plain), Contains("v is plain, but the step on "));
  CHECK_THAT(text(plain_step, k, k), Contains("k is on ") && Contains("but the step plain"));
  CHECK_THAT(text(step, k, ones({2, 4, 1, 3}, DeviceMesh(World::local(2), {2}, {"tp"}))), Contains("v is on "));
  CHECK_FALSE(cache.keys().defined());
  const auto [keys, values] = cache.update(step, k, k);
  CHECK(full_tensor(keys).sum().item<float>() == 4 * 3);
  CHECK_THAT(text(plain_step, 2 * k, k), Contains("but the step plain"));
  CHECK(full_tensor(keys).sum().item<float>() == 4 * 3);
}

}  // namespace
}  // namespace dtensor
