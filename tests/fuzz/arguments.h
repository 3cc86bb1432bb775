// Random arguments for one operator, by their types and names; most choices are accepted by the operator.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/fuzz/catalog.h"
#include "tests/fuzz/execution.h"
#include "tests/fuzz/program.h"
#include "tests/fuzz/random.h"
#include "tests/fuzz/templates.h"

namespace dtensor::fuzz {

// The program so far: calls take tensors from it, and add leaves to it.
struct Draft {
  Program program;
  Execution plain;
  Random random;
  c10::ScalarType usual_dtype = c10::ScalarType::Double;
  int next_id = 0;

  explicit Draft(uint64_t seed) : random(seed) {}
  int add(Leaf leaf);
  const at::Tensor& at(int id) const { return plain.tensors().at(id); }
  // Removes the leaves from the `count`-th on.
  void cut_leaves(size_t count);
};

class Arguments {
 public:
  Arguments(Draft& draft, const Operator& op);

  // One per schema argument, except for out=, which gets its tensor later. nullopt: there is no value for some
  // argument.
  std::optional<std::vector<Argument>> make();

 private:
  std::optional<Argument> make(const c10::Argument& argument);
  std::optional<Argument> by_type(const c10::Argument& argument, const c10::TypePtr& type);
  std::optional<Argument> by_template(const c10::Argument& argument, const c10::TypePtr& type, const std::string& text);

  TensorRef tensor(const std::string& name, bool written);
  TensorRef first_tensor(bool written);
  TensorRef other_tensor(const std::string& name);
  TensorRef templated_tensor(const std::string& text, bool may_be_old);
  TensorRefs tensors(const std::string& name, bool optional);
  std::vector<int64_t> sizes_of(const std::string& letters);
  int64_t letter(char c);
  bool bind(const std::string& letters, at::IntArrayRef sizes);

  int64_t integer(const std::string& name);
  std::vector<int64_t> integers(const std::string& name);
  double number(const std::string& name);
  Argument scalar();
  std::string text(const std::string& name);

  int64_t ndim() const { return self_.defined() ? self_.dim() : 2; }
  int64_t any_dim() {
    const int64_t n = std::max<int64_t>(ndim(), 1);
    return draft_.random.between(-n, n - 1);
  }
  int64_t size_of_dim() const;

  Draft& draft_;
  const Operator& op_;
  const Template* template_ = nullptr;
  at::Tensor self_;
  std::vector<int> of_list_;  // a list of this many tensors matches another one
  std::optional<int64_t> dim_;
  std::map<char, int64_t> letters_;
  std::vector<int64_t> star_;  // the sizes that '*' stands for
  bool star_known_ = false;
};

}  // namespace dtensor::fuzz
