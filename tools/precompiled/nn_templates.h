// The class templates that modules and optimizers derive from, as core_templates.h says.
#pragma once

#ifdef __clang__

#include <torch/csrc/jit/ir/attributes.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "tools/precompiled/core_templates.h"

// An optimizer's virtual functions are private and not final, so they are compiled in every source, in 0.3 s.
#define DTENSOR_OPTIMIZER(Optimizer)                                                        \
  template class torch::optim::OptimizerCloneableOptions<torch::optim::Optimizer##Options>; \
  template class torch::optim::OptimizerCloneableParamState<torch::optim::Optimizer##ParamState>;
DTENSOR_OPTIMIZER(Adagrad)
DTENSOR_OPTIMIZER(Adam)
DTENSOR_OPTIMIZER(AdamW)
DTENSOR_OPTIMIZER(LBFGS)
DTENSOR_OPTIMIZER(RMSprop)
DTENSOR_OPTIMIZER(SGD)
#undef DTENSOR_OPTIMIZER

namespace dtensor::internal::precompiled {

// clang-format off
#define DTENSOR_MODULES(F) \
  F(Linear) F(Bilinear) F(Embedding) F(EmbeddingBag) F(Fold) F(Unfold) F(Unflatten) F(Sequential) F(ModuleDict) \
  F(ParameterDict) \
  F(Conv1d) F(Conv2d) F(Conv3d) F(ConvTranspose1d) F(ConvTranspose2d) F(ConvTranspose3d) F(FractionalMaxPool2d) \
  F(FractionalMaxPool3d) \
  F(LayerNorm) F(GroupNorm) F(LocalResponseNorm) F(CrossMapLRN2d) F(Softmax) F(Softmin) F(LogSoftmax) F(Threshold) \
  F(AdaptiveLogSoftmaxWithLoss) \
  F(RNN) F(LSTM) F(GRU) F(RNNCell) F(LSTMCell) F(GRUCell) \
  F(MultiheadAttention) F(TransformerEncoderLayer) F(TransformerDecoderLayer) F(TransformerEncoder) \
  F(TransformerDecoder)
// clang-format on

template <auto function>
struct Named {};

// clone_ is private, but an explicit instantiation may name it. That instantiates it, as a module's is final.
#define DTENSOR_NAME_CLONE(Module) template struct Named<&torch::nn::Cloneable<torch::nn::Module##Impl>::clone_>;
DTENSOR_MODULES(DTENSOR_NAME_CLONE)
#undef DTENSOR_NAME_CLONE

template <size_t dims, typename Conv, typename ConvTranspose>
void instantiate_convolutions() {
  instantiate(static_cast<torch::nn::ConvNdImpl<dims, Conv>*>(nullptr),
              static_cast<torch::nn::ConvNdImpl<dims, ConvTranspose>*>(nullptr),
              static_cast<torch::nn::ConvTransposeNdImpl<dims, ConvTranspose>*>(nullptr));
}

template <typename T, torch::jit::AttributeKind kind, typename List, torch::jit::AttributeKind list_kind>
void instantiate_attributes() {
  instantiate(static_cast<torch::jit::ScalarAttributeValue<T, kind>*>(nullptr),
              static_cast<torch::jit::VectorAttributeValue<List, list_kind>*>(nullptr));
}

inline void instantiate_nn_templates() {
#define DTENSOR_INSTANTIATE(Module) instantiate(static_cast<torch::nn::Cloneable<torch::nn::Module##Impl>*>(nullptr));
  DTENSOR_MODULES(DTENSOR_INSTANTIATE)
#undef DTENSOR_INSTANTIATE
  using namespace torch::nn;
  instantiate_convolutions<1, Conv1dImpl, ConvTranspose1dImpl>();
  instantiate_convolutions<2, Conv2dImpl, ConvTranspose2dImpl>();
  instantiate_convolutions<3, Conv3dImpl, ConvTranspose3dImpl>();

  using torch::jit::AttributeKind;
  instantiate_attributes<c10::complex<double>, AttributeKind::c, c10::complex<double>, AttributeKind::cs>();
  instantiate_attributes<double, AttributeKind::f, double, AttributeKind::fs>();
  instantiate_attributes<int64_t, AttributeKind::i, int64_t, AttributeKind::is>();
  instantiate_attributes<std::string, AttributeKind::s, std::string, AttributeKind::ss>();
  instantiate_attributes<at::Tensor, AttributeKind::t, at::Tensor, AttributeKind::ts>();
  instantiate_attributes<c10::TypePtr, AttributeKind::ty, c10::TypePtr, AttributeKind::tys>();
}

}  // namespace dtensor::internal::precompiled

#undef DTENSOR_MODULES

#endif  // __clang__
