// Numbers that are off in their last digits.
#pragma once

#include <ATen/core/Tensor.h>

#include <random>
#include <vector>

namespace dtensor::fuzz {

// Of the dtype's numbers about 1.
double last_digit(c10::ScalarType dtype);
bool is_number(const at::Tensor& t);
// Whatever autograd thinks of the tensor. Does nothing where several elements lie in one place.
void write(const at::Tensor& t, const std::vector<double>& values);

struct Rounding {
  double scale = 0;       // of the addends whose rounding the values have; 0: they have their own only
  bool signs = false;     // those of zeros are open
  bool always = false;    // also of values of few digits, which others may come to exactly
  bool added_up = false;  // they are read to be added up in their own dtype
};
void disturb(const at::Tensor& t, const Rounding& rounding, std::mt19937_64& random);

}  // namespace dtensor::fuzz
