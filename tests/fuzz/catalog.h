// The operators that programs are made of.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace dtensor::fuzz {

struct Operator {
  c10::OperatorHandle handle;
  std::string name;  // "aten::add.Tensor"
  std::string base;  // "add"; "add" of "add_", too
  enum class Support { kRule, kComposite, kNone } support = Support::kNone;
  bool is_view = false;  // a result may share memory with an argument
  double weight = 1;     // probability of being called; all overloads of a name together have that of one
};

// Every operator of ATen that works on dense tensors and gives the same values each time: those with a rule or a
// handler, composite ones, and those without either. Read from LibTorch's dispatcher, sorted by name.
const std::vector<Operator>& catalog();

// Whether it is composite, by its full name; false if it is not in the catalog.
bool is_composite(const std::string& name);
// Whether it accepts integers and bool only.
bool takes_integers(const std::string& base);
// Whether the order among equal elements is not defined.
bool needs_distinct_values(const std::string& base);

}  // namespace dtensor::fuzz
