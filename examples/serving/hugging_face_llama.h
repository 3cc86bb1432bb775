// Llama in Hugging Face's files: config.json, and safetensors with the names of transformers' LlamaForCausalLM. Weights
// have the same orientation, [out, in], and rotary positions the same halves, so that only names differ:
//
//   blocks.3.wq.weight      model.layers.3.self_attn.q_proj.weight
//   blocks.3.gate.weight    model.layers.3.mlp.gate_proj.weight
//   tokens.weight           model.embed_tokens.weight
#pragma once

#include <string>

#include "examples/models/llama.h"

namespace examples {

// The name of a parameter of Llama there. Error (c10::Error): Llama has no such parameter.
std::string hugging_face_name(const std::string& parameter);

// Of config.json in `folder`. Error (ValueError): no such file, no JSON, or a field that is missing or not supported.
LlamaConfig read_config(const std::string& folder);

// Copies the weights of `folder` into the model: each rank reads its parts of the mapped files. A model without
// lm_head.weight uses the table of tokens there. Errors: those of HuggingFaceFolder and load_state_dict().
void load_weights(Llama& model, const std::string& folder);

// Writes config.json and the weights; a collective call if the model is distributed. `writes_config`: on one process.
void save_weights(Llama& model, const std::string& folder, bool writes_config);

}  // namespace examples
