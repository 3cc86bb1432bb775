#include "examples/text_data.h"

#include <ATen/ops/empty.h>

#include <cctype>
#include <set>

namespace examples {

Vocab::Vocab(const std::string& text, VocabKind kind) : kind_(kind) {
  const auto pieces = split(text);
  const std::set<std::string> distinct(pieces.begin(), pieces.end());
  tokens_.push_back("<?>");
  for (const auto& t : distinct) {
    ids_[t] = static_cast<int64_t>(tokens_.size());
    tokens_.push_back(t);
  }
}

std::vector<std::string> Vocab::split(const std::string& text) const {
  std::vector<std::string> pieces;
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t i = 0; i < text.size();) {
    size_t n = 1;
    if (kind_ == VocabKind::kChar) {  // one UTF-8 character
      while (i + n < text.size() && (static_cast<unsigned char>(text[i + n]) & 0xC0) == 0x80) ++n;
    } else if (is_word(text[i])) {
      while (i + n < text.size() && is_word(text[i + n])) ++n;
    }
    pieces.push_back(text.substr(i, n));
    i += n;
  }
  return pieces;
}

std::vector<int64_t> Vocab::encode(const std::string& text) const {
  std::vector<int64_t> ids;
  for (const auto& piece : split(text)) {
    const auto it = ids_.find(piece);
    ids.push_back(it == ids_.end() ? 0 : it->second);
  }
  return ids;
}

std::string Vocab::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  for (int64_t id : ids) text += tokens_.at(static_cast<size_t>(id));
  return text;
}

std::vector<Batch> make_batches(const std::vector<int64_t>& ids, int64_t batch, int64_t length, int64_t count,
                                uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int64_t> start(0, static_cast<int64_t>(ids.size()) - length - 1);
  std::vector<Batch> batches;
  for (int64_t n = 0; n < count; ++n) {
    Batch b{at::empty({batch, length}, at::kLong), at::empty({batch, length}, at::kLong)};
    auto* in = b.inputs.mutable_data_ptr<int64_t>();
    auto* out = b.targets.mutable_data_ptr<int64_t>();
    for (int64_t i = 0; i < batch; ++i) {
      const int64_t at = start(random);
      for (int64_t j = 0; j < length; ++j) {
        in[i * length + j] = ids[at + j];
        out[i * length + j] = ids[at + j + 1];
      }
    }
    batches.push_back(std::move(b));
  }
  return batches;
}

}  // namespace examples
