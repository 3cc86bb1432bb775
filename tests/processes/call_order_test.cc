// In which order collectives of one group begin, whatever they wait for.
#include "processes/c10d/call_order.h"

#include <future>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/testing/catch_torch.h"

namespace dtensor {
using namespace internal;

namespace {

using Begun = CallOrder::Begun;

TEST_CASE("call order: places begin in turn, each when it is filled", "[processes][call_order]") {
  CallOrder order;
  std::string begun;
  const auto note = [&](char name) {
    return [&begun, name] {
      begun += name;
      return Begun();
    };
  };
  const auto places = order.reserve(4);
  const auto &a = places[0], &b = places[1], &c = places[2], &d = places[3];
  order.fill(b, note('b'));
  order.fill(c, note('c'));
  CHECK(begun.empty());
  order.fill(a, note('a'));
  CHECK(begun == "abc");
  CHECK(c->has_begun());
  CHECK_FALSE(d->has_begun());
  order.fill(d, note('d'));
  CHECK(begun == "abcd");
}

TEST_CASE("call order: a function may fill the next place, and its error belongs to its own place",
          "[processes][call_order]") {
  CallOrder order;
  std::string begun;
  const auto places = order.reserve(3);
  const auto &a = places[0], &b = places[1], &c = places[2];
  order.fill(c, [&] {
    begun += 'c';
    return Begun();
  });
  order.fill(a, [&]() -> Begun {
    order.fill(b, [&] {
      begun += 'b';
      return Begun();
    });
    begun += 'a';
    throw std::runtime_error("no");
  });
  CHECK(begun == "abc");
  CHECK_THROWS_AS(a->begun().get(), std::runtime_error);
  CHECK(b->begun().get() == nullptr);
}

TEST_CASE("call order: filling a place does not wait while another thread begins one", "[processes][call_order]") {
  CallOrder order;
  std::promise<void> inside, go_on;
  const auto places = order.reserve(2);
  const auto &a = places[0], &b = places[1];
  std::thread first([&] {
    order.fill(a, [&] {
      inside.set_value();
      go_on.get_future().wait();
      return Begun();
    });
  });
  inside.get_future().wait();
  order.fill(b, [] { return Begun(); });
  CHECK_FALSE(b->has_begun());  // its turn comes after a
  go_on.set_value();
  first.join();
  CHECK(b->has_begun());
}

}  // namespace
}  // namespace dtensor
