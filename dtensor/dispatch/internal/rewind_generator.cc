#include "dtensor/dispatch/internal/rewind_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <mutex>
#include <string>

namespace dtensor::internal {
namespace {

at::Generator default_generator(c10::Device device) { return at::globalContext().defaultGenerator(device); }

// Seeded with a draw from the call's generator (by default that of the CPU, as everywhere: see ops/random/random.h).
at::Generator new_generator(const c10::IValue& given, c10::Device device) {
  at::Generator source = given.isNone() ? default_generator(c10::DeviceType::CPU) : given.toGenerator();
  if (source.device().type() != c10::DeviceType::CPU) return source.clone();
  uint64_t seed = 0;
  {
    std::lock_guard lock(source.mutex());
    seed = source.get<at::CPUGeneratorImpl>()->random64();
  }
  at::Generator result = default_generator(device).clone();
  result.set_current_seed(seed);
  return result;
}

// One on the CPU has advanced already, by the draw of a seed.
void advance(at::Generator given, const at::Generator& used) {
  if (given.device().type() == c10::DeviceType::CPU) return;
  std::lock_guard lock(given.mutex());
  given.set_state(used.get_state());
}

}  // namespace

void RewindGenerator::run(const c10::OperatorHandle& op, c10::Device device, torch::jit::Stack& stack,
                          const std::function<void()>& call) {
  const auto& arguments = op.schema().arguments();
  for (size_t a = 0; a < arguments.size(); ++a) {
    if (arguments[a].type()->str().find("Generator") == std::string::npos) continue;
    const c10::IValue given = stack[a];
    const bool first = !drawn_.defined();
    if (first) drawn_ = new_generator(given, device);
    at::Generator used = drawn_.clone();
    stack[a] = used;
    call();
    if (first && given.isGenerator()) advance(given.toGenerator(), used);
    return;
  }
  at::Generator generator = default_generator(device);
  std::unique_lock lock(generator.mutex());
  if (!drawn_.defined()) {
    drawn_ = generator.clone();
  } else {
    generator.set_state(drawn_.get_state());
  }
  lock.unlock();
  call();
}

}  // namespace dtensor::internal
