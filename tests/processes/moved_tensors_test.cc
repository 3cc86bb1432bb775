// Which call of a group moved a tensor last.
#include "processes/c10d/moved_tensors.h"

#include <ATen/ops/ones.h>

#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

TEST_CASE("moved tensors: a tensor that moves again gives its last call", "[processes][moved_tensors]") {
  MovedTensors moved;
  const at::Tensor a = at::ones({2}), b = at::ones({2}), handle_of_a = a;
  CHECK(moved.move(1, a) == 0);
  CHECK(moved.move(2, b) == 0);
  CHECK(moved.move(3, at::Tensor()) == 0);
  CHECK(moved.move(4, handle_of_a) == 1);
  CHECK(moved.move(5, a) == 4);
  CHECK(moved.move(6, b) == 2);
}

TEST_CASE("moved tensors: new tensors give 0, wherever they lie in memory", "[processes][moved_tensors]") {
  MovedTensors moved;
  for (int64_t call = 1; call <= 3 * MovedTensors::kCalls; ++call) {
    const bool is_new = moved.move(call, at::ones({2})) == 0;  // which the allocator puts where the one before was
    if (!is_new) CHECK(is_new);
  }
}

TEST_CASE("moved tensors: memory of moved tensors is released", "[processes][moved_tensors]") {
  MovedTensors moved;
  const at::Tensor a = at::ones({2});
  const c10::Storage storage = a.storage();
  moved.move(1, at::ones({2}).set_(a));
  CHECK(storage.use_count() == 2);  // that of `a`, and this one
}

TEST_CASE("moved tensors: a tensor that moved kCalls calls ago gives 0, one that moved later gives the call",
          "[processes][moved_tensors]") {
  for (int64_t others : {MovedTensors::kCalls - 2, MovedTensors::kCalls - 1}) {
    MovedTensors moved;
    const at::Tensor a = at::ones({2}), b = at::ones({2});
    CHECK(moved.move(1, a) == 0);
    for (int64_t call = 2; call <= 1 + others; ++call) {
      const bool is_last = moved.move(call, b) == (call == 2 ? 0 : call - 1);
      if (!is_last) CHECK(is_last);
    }
    CHECK(moved.move(2 + others, a) == (others == MovedTensors::kCalls - 2 ? 1 : 0));
  }
}

}  // namespace
}  // namespace dtensor
