// A small transformer language model in plain torch::nn: without any code for meshes.
#pragma once

#include <torch/nn.h>

#include <cmath>

namespace examples {

struct LMConfig {
  int64_t vocab = 0;
  int64_t context = 32;  // longest sequence
  int64_t width = 48;    // hidden size
  int64_t heads = 4;     // must divide width
  int64_t layers = 2;
  double dropout = 0.0;
};

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const LMConfig& c)
      : heads_(c.heads),
        norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.width})))),
        wq(register_module("wq", torch::nn::Linear(c.width, c.width))),
        wk(register_module("wk", torch::nn::Linear(c.width, c.width))),
        wv(register_module("wv", torch::nn::Linear(c.width, c.width))),
        wo(register_module("wo", torch::nn::Linear(c.width, c.width))),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.width})))),
        up(register_module("up", torch::nn::Linear(c.width, 4 * c.width))),
        down(register_module("down", torch::nn::Linear(4 * c.width, c.width))),
        dropout(register_module("dropout", torch::nn::Dropout(c.dropout))) {}

  // x: [batch, length, width]; mask: [length, length], -inf where attention is not allowed.
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask) {
    x = x + dropout(attention(norm1(x), mask));
    return x + dropout(down(torch::gelu(up(norm2(x)))));
  }

 private:
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& mask) {
    const auto split = [&](const torch::Tensor& t) {  // [batch, heads, length, width / heads]
      return t.view({t.size(0), t.size(1), heads_, t.size(2) / heads_}).transpose(1, 2);
    };
    const auto q = split(wq(x)), k = split(wk(x)), v = split(wv(x));
    const auto scores = q.matmul(k.transpose(-2, -1)) / std::sqrt(static_cast<double>(q.size(-1)));
    const auto mixed = torch::softmax(scores + mask, -1).matmul(v);
    return wo(mixed.transpose(1, 2).reshape({x.size(0), x.size(1), x.size(2)}));
  }

  int64_t heads_;

 public:
  torch::nn::LayerNorm norm1;
  torch::nn::Linear wq, wk, wv, wo;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(Block);

class LanguageModelImpl : public torch::nn::Module {
 public:
  explicit LanguageModelImpl(const LMConfig& c)
      : config(c),
        tokens(register_module("tokens", torch::nn::Embedding(c.vocab, c.width))),
        positions(register_module("positions", torch::nn::Embedding(c.context, c.width))),
        blocks(register_module("blocks", torch::nn::ModuleList())),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.width})))),
        head(register_module("head", torch::nn::Linear(torch::nn::LinearOptions(c.width, c.vocab).bias(false)))) {
    for (int64_t i = 0; i < c.layers; ++i) blocks->push_back(Block(c));
  }

  // ids: [batch, length] -> logits [batch, length, vocab].
  torch::Tensor forward(const torch::Tensor& ids) {
    const int64_t length = ids.size(1);
    const auto place = torch::arange(length, torch::kLong);
    const auto mask = torch::full({length, length}, -INFINITY, tokens->weight.options().requires_grad(false)).triu(1);
    auto x = tokens(ids) + positions(place);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x, mask);
    return head(norm(x));
  }

  LMConfig config;
  torch::nn::Embedding tokens, positions;
  torch::nn::ModuleList blocks;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(LanguageModel);

}  // namespace examples
