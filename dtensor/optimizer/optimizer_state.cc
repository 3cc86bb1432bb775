#include "dtensor/optimizer/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

namespace dtensor::internal {
namespace {

using Options = std::vector<std::pair<std::string, std::variant<bool*, double*>>>;

template <typename State>
ParamStateFields adam_fields(State& s) {
  return {{{"exp_avg", &s.exp_avg()}, {"exp_avg_sq", &s.exp_avg_sq()}, {"max_exp_avg_sq", &s.max_exp_avg_sq()}},
          &s.step()};
}

template <typename AdamOptions>
Options adam_options(AdamOptions& o) {
  return {{"lr", &o.lr()},   {"beta1", &std::get<0>(o.betas())},  {"beta2", &std::get<1>(o.betas())},
          {"eps", &o.eps()}, {"weight_decay", &o.weight_decay()}, {"amsgrad", &o.amsgrad()}};
}

}  // namespace

std::optional<ParamStateFields> fields_of(torch::optim::OptimizerParamState& state) {
  if (auto* s = dynamic_cast<torch::optim::SGDParamState*>(&state))
    return ParamStateFields{{{"momentum_buffer", &s->momentum_buffer()}}, nullptr};
  if (auto* s = dynamic_cast<torch::optim::AdamParamState*>(&state)) return adam_fields(*s);
  if (auto* s = dynamic_cast<torch::optim::AdamWParamState*>(&state)) return adam_fields(*s);
  if (auto* s = dynamic_cast<torch::optim::AdagradParamState*>(&state))
    return ParamStateFields{{{"sum", &s->sum()}}, &s->step()};
  if (auto* s = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    return ParamStateFields{
        {{"square_avg", &s->square_avg()}, {"momentum_buffer", &s->momentum_buffer()}, {"grad_avg", &s->grad_avg()}},
        &s->step()};
  }
  return std::nullopt;
}

std::unique_ptr<torch::optim::OptimizerParamState> new_param_state(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer)) return std::make_unique<torch::optim::SGDParamState>();
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer)) return std::make_unique<torch::optim::AdamParamState>();
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer)) return std::make_unique<torch::optim::AdamWParamState>();
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer))
    return std::make_unique<torch::optim::AdagradParamState>();
  if (dynamic_cast<const torch::optim::RMSprop*>(&optimizer))
    return std::make_unique<torch::optim::RMSpropParamState>();
  return nullptr;
}

Options fields_of(torch::optim::OptimizerOptions& options) {
  if (auto* o = dynamic_cast<torch::optim::SGDOptions*>(&options)) {
    return {{"lr", &o->lr()},
            {"momentum", &o->momentum()},
            {"dampening", &o->dampening()},
            {"weight_decay", &o->weight_decay()},
            {"nesterov", &o->nesterov()}};
  }
  if (auto* o = dynamic_cast<torch::optim::AdamOptions*>(&options)) return adam_options(*o);
  if (auto* o = dynamic_cast<torch::optim::AdamWOptions*>(&options)) return adam_options(*o);
  if (auto* o = dynamic_cast<torch::optim::AdagradOptions*>(&options)) {
    return {{"lr", &o->lr()},
            {"lr_decay", &o->lr_decay()},
            {"weight_decay", &o->weight_decay()},
            {"initial_accumulator_value", &o->initial_accumulator_value()},
            {"eps", &o->eps()}};
  }
  if (auto* o = dynamic_cast<torch::optim::RMSpropOptions*>(&options)) {
    return {{"lr", &o->lr()},
            {"alpha", &o->alpha()},
            {"eps", &o->eps()},
            {"weight_decay", &o->weight_decay()},
            {"momentum", &o->momentum()},
            {"centered", &o->centered()}};
  }
  return {};
}

}  // namespace dtensor::internal
