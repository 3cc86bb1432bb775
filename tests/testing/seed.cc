// Every test case begins with the same seed: LibTorch's default generator starts from a different one in every process.
#include <ATen/CPUGeneratorImpl.h>

#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include "tests/testing/catch_torch.h"

namespace {

class Seed : public Catch::TestEventListenerBase {
 public:
  using Catch::TestEventListenerBase::TestEventListenerBase;
  void testCaseStarting(const Catch::TestCaseInfo& info) override {
    Catch::TestEventListenerBase::testCaseStarting(info);
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard lock(generator.mutex());
    generator.set_current_seed(1);
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(Seed)
