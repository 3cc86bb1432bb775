#include "examples/serving/hugging_face_llama.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/hugging_face.h"
#include "checkpoint/serialize.h"

namespace examples {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::pair<const char*, const char*> kOfModel[] = {
    {"tokens.", "model.embed_tokens."}, {"norm.", "model.norm."}, {"head.", "lm_head."}};
constexpr std::pair<const char*, const char*> kOfBlock[] = {
    {"attention_norm.", "input_layernorm."},
    {"wq.", "self_attn.q_proj."},
    {"wk.", "self_attn.k_proj."},
    {"wv.", "self_attn.v_proj."},
    {"wo.", "self_attn.o_proj."},
    {"feed_forward_norm.", "post_attention_layernorm."},
    {"gate.", "mlp.gate_proj."},
    {"up.", "mlp.up_proj."},
    {"down.", "mlp.down_proj."},
};

// `name` with the first of `pairs` that it begins with replaced; "": none fits.
template <typename Pairs>
std::string replaced(const std::string& name, const Pairs& pairs) {
  for (const auto& [ours, theirs] : pairs) {
    if (name.rfind(ours, 0) == 0) return theirs + name.substr(std::string(ours).size());
  }
  return "";
}

std::string config_path(const std::string& folder) { return (std::filesystem::path(folder) / "config.json").string(); }

// A number of config.json; `otherwise` if there is none, where that is not 0.
double number(const Json& json, const std::string& path, const char* field, double otherwise = 0) {
  const auto found = json.find(field);
  if (found == json.end() && otherwise != 0) return otherwise;
  TORCH_CHECK_VALUE(found != json.end() && found->is_number() && found->get<double>() > 0, "'", path, "': \"", field,
                    "\" is ", found == json.end() ? std::string("missing") : found->dump(),
                    ": a number above 0 is expected");
  return found->get<double>();
}

// Other models have the same names of tensors, and would load and give other tokens.
void check_is_llama(const Json& json, const std::string& path) {
  const auto expect = [&](const char* field, const Json& expected, const Json& if_missing) {
    const Json value = json.value(field, if_missing);
    TORCH_CHECK_VALUE(value == expected, "'", path, "': \"", field, "\" is ", value.dump(), ": only ", expected.dump(),
                      " is supported");
  };
  expect("model_type", "llama", nullptr);
  expect("hidden_act", "silu", "silu");
  expect("attention_bias", false, false);
  expect("mlp_bias", false, false);
}

// Newer files have "rope_parameters" instead of "rope_theta" and "rope_scaling".
double read_rope_theta(const Json& json, const std::string& path) {
  const Json parameters = json.value("rope_parameters", Json());
  for (const Json& scaling : {json.value("rope_scaling", Json()), parameters}) {
    const bool plain =
        scaling.is_null() ||
        (scaling.is_object() && scaling.value("rope_type", Json("default")) == "default" && !scaling.contains("type"));
    TORCH_CHECK_VALUE(plain, "'", path, "': scaled rotary embeddings are not supported, as in ", scaling.dump(),
                      "; Llama 1 and 2 have none");
  }
  return number(parameters.contains("rope_theta") ? parameters : json, path, "rope_theta", 10000);
}

}  // namespace

std::string hugging_face_name(const std::string& parameter) {
  std::string name = replaced(parameter, kOfModel);
  if (parameter.rfind("blocks.", 0) == 0) {
    const size_t begin = parameter.find('.', 7) + 1;  // after "blocks.3."
    const std::string rest = replaced(parameter.substr(begin), kOfBlock);
    if (!rest.empty()) name = "model.layers." + parameter.substr(7, begin - 7) + rest;
  }
  TORCH_CHECK(!name.empty(), "Llama has no parameter '", parameter, "'");
  return name;
}

LlamaConfig read_config(const std::string& folder) {
  const std::string path = config_path(folder);
  std::ifstream in(path);
  TORCH_CHECK_VALUE(in, "'", path, "': it cannot be opened; a folder with a Llama of Hugging Face has this file");
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  TORCH_CHECK_VALUE(json.is_object(), "'", path, "': it is not a JSON object");
  const auto count = [&](const char* field, double otherwise = 0) {
    return static_cast<int64_t>(number(json, path, field, otherwise));
  };
  check_is_llama(json, path);
  LlamaConfig c;
  c.vocab = count("vocab_size");
  c.width = count("hidden_size");
  c.hidden = count("intermediate_size");
  c.layers = count("num_hidden_layers");
  c.heads = count("num_attention_heads");
  c.kv_heads = count("num_key_value_heads", static_cast<double>(c.heads));
  c.norm_epsilon = number(json, path, "rms_norm_eps", 1e-6);
  c.rope_theta = read_rope_theta(json, path);
  TORCH_CHECK_VALUE(c.width % (2 * c.heads) == 0 && c.heads % c.kv_heads == 0, "'", path, "': ", c.width,
                    " features and ", c.heads, " heads of ", c.kv_heads,
                    " keys: heads must be even in size, and a multiple of those of the keys");
  return c;
}

void load_weights(Llama& model, const std::string& folder) {
  const dtensor::HuggingFaceFolder weights(folder);
  dtensor::NamedTensors values;  // views of the mapped files
  for (const auto& [name, t] : dtensor::state_dict(*model)) {
    std::string theirs = hugging_face_name(name);
    if (theirs == "lm_head.weight" && !weights.contains(theirs)) theirs = hugging_face_name("tokens.weight");
    values.emplace(name, weights.tensor(theirs));
  }
  dtensor::load_state_dict(*model, values);
}

void save_weights(Llama& model, const std::string& folder, bool writes_config) {
  const LlamaConfig& c = model->config;
  dtensor::NamedTensors values;
  for (const auto& [name, t] : dtensor::state_dict(*model)) values.emplace(hugging_face_name(name), t);
  dtensor::save_hugging_face(values, folder);
  if (!writes_config) return;
  const Json json = {{"architectures", {"LlamaForCausalLM"}},
                     {"model_type", "llama"},
                     {"vocab_size", c.vocab},
                     {"hidden_size", c.width},
                     {"intermediate_size", c.hidden},
                     {"num_hidden_layers", c.layers},
                     {"num_attention_heads", c.heads},
                     {"num_key_value_heads", c.kv_heads},
                     {"rms_norm_eps", c.norm_epsilon},
                     {"rope_theta", c.rope_theta},
                     {"tie_word_embeddings", false}};
  std::ofstream out(config_path(folder));
  out << json.dump(2) << "\n";
  TORCH_CHECK(out.flush(), "'", config_path(folder), "': it cannot be written");
}

}  // namespace examples
