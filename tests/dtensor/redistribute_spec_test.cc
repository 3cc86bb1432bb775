// The spec of a redistribution's result: the same for all results of one plan, also after they are freed.
#include <torch/types.h>

#include <vector>

#include "dtensor/dtensor_handle.h"
#include "dtensor/redistribute.h"
#include "dtensor/tensor/representation.h"
#include "tests/dtensor/view_pairs.h"

namespace dtensor::testing {
using namespace internal;

namespace {

TEST_CASE("redistribute: a result that is made again after it was freed has the same spec") {
  const DeviceMesh mesh(World::local(4), {2, 2});
  const Tensor whole = numbers({6, 8});
  for (const Tensor& plain : {whole, whole.t(), whole.slice(1, 0, 8, 2), whole.slice(0, 0, 0)}) {
    const Tensor t = distribute_tensor(plain.t(), mesh, {Shard(1), Replicate()}).t();
    for (const Placements& to : std::vector<Placements>{
             {Shard(1), Replicate()}, {Replicate(), Shard(-1)}, {Shard(0), Shard(0)}, {Shard(0), Partial()}}) {
      CAPTURE(to_string(to), plain.sizes());
      const auto moved = [&] {
        const Tensor result = redistribute(t, mesh, to);
        CHECK(same(result, plain.contiguous()));
        CHECK(result.strides() == t.clone().strides());
        return spec_of(result)->id();
      };
      const auto first = moved();
      CHECK(moved() == first);
    }
  }
}

}  // namespace
}  // namespace dtensor::testing
