// The library's own rules, one function per family. Called once, when the registry is made.
#pragma once

namespace dtensor {

class RuleRegistry;

void register_builtin_rules(RuleRegistry& registry);

void register_attention_rules(RuleRegistry& registry);
void register_composite_handlers();  // vander, max_pool1d, ...
void register_embedding_rules(RuleRegistry& registry);
void register_factory_rules(RuleRegistry& registry);  // zeros_like, new_full, ...
void register_factory_out_handlers();                 // called by register_factory_rules
void register_forward_mode_handlers();                // called by register_scalar_rules
void register_index_rules(RuleRegistry& registry);
void register_loss_rules(RuleRegistry& registry);
void register_matmul_rules(RuleRegistry& registry);
void register_nll_loss_rules(RuleRegistry& registry);  // called by register_loss_rules
void register_normalization_rules(RuleRegistry& registry);
void register_pointwise_rules(RuleRegistry& registry);
void register_random_rules(RuleRegistry& registry);
void register_reduction_rules(RuleRegistry& registry);
void register_scalar_rules(RuleRegistry& registry);  // item(), equal(), ...: results that are no tensors
void register_softmax_rules(RuleRegistry& registry);
void register_view_rules(RuleRegistry& registry);

}  // namespace dtensor
