// Text to token ids and batches, for the language-model example. Plain C++ and tensors; nothing distributed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

namespace examples {

enum class VocabKind { kChar, kWord };

class Vocab {
 public:
  // Every distinct character, or every distinct word and punctuation mark, of `text`, in sorted order; id 0 is
  // "unknown".
  Vocab(const std::string& text, VocabKind kind);

  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  std::vector<int64_t> encode(const std::string& text) const;
  std::string decode(const std::vector<int64_t>& ids) const;

 private:
  std::vector<std::string> split(const std::string& text) const;
  VocabKind kind_;
  std::vector<std::string> tokens_;
  std::map<std::string, int64_t> ids_;
};

struct Batch {
  at::Tensor inputs;   // int64 [batch, length]
  at::Tensor targets;  // int64 [batch, length]: inputs shifted by one
};

// `count` batches of random windows of `ids`; the same for the same seed.
std::vector<Batch> make_batches(const std::vector<int64_t>& ids, int64_t batch, int64_t length, int64_t count,
                                uint64_t seed);

}  // namespace examples
