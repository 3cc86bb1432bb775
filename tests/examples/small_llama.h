// A Llama whose sizes divide by nothing, for tests on few ranks.
#pragma once

#include "examples/models/llama.h"

namespace dtensor {

inline examples::LlamaConfig small_llama(int64_t layers = 2) {
  examples::LlamaConfig c;
  c.vocab = 23;
  c.width = 16;
  c.heads = 4;
  c.kv_heads = 2;
  c.hidden = 19;
  c.layers = layers;
  return c;
}

}  // namespace dtensor
