#include "ops/register.h"

#include "propagation/op_rule.h"

namespace dtensor {

void register_builtin_rules(RuleRegistry& registry) {
  register_pointwise_rules(registry);
  register_reduction_rules(registry);
  register_view_rules(registry);
  register_index_rules(registry);
  register_factory_rules(registry);
  register_random_rules(registry);
  register_matmul_rules(registry);
  register_embedding_rules(registry);
  register_normalization_rules(registry);
  register_softmax_rules(registry);
  register_attention_rules(registry);
  register_loss_rules(registry);
  register_scalar_rules(registry);
  register_composite_handlers();
}

}  // namespace dtensor
