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
  double weight = 1;     // how often it is called, overloads of one name together having that of one
};

// Every operator of ATen that works on dense tensors and gives the same values each time: those with a rule or a
// handler, those that ATen composes of others, and those that have neither. Read from LibTorch's dispatcher, sorted by
// name.
const std::vector<Operator>& catalog();

// Whether ATen composes it of others, by its whole name; false for what is not in the catalog.
bool is_composite(const std::string& name);
// Whether it takes integers and bool only.
bool takes_integers(const std::string& base);
// Whether the order among equal elements is not defined.
bool needs_distinct_values(const std::string& base);

}  // namespace dtensor::fuzz
