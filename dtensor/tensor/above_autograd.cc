#include "dtensor/tensor/above_autograd.h"

#include <utility>
#include <vector>

#include "dtensor/dispatch_key.h"

namespace dtensor::internal {

void register_above_autograd(std::optional<c10::KernelFunction> (*kernel_of)(const c10::OperatorHandle& op),
                             const char* what) {
  auto& dispatcher = c10::Dispatcher::singleton();
  auto* registered = new std::vector<c10::RegistrationHandleRAII>;  // stays for the process' lifetime
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    auto kernel = op ? kernel_of(*op) : std::nullopt;
    if (!kernel) continue;
    registered->push_back(
        dispatcher.registerImpl(name, kAboveAutogradKey, *std::move(kernel), std::nullopt, nullptr, what));
  }
}

}  // namespace dtensor::internal
