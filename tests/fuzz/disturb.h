// Perturbs numbers in their last digits.
#pragma once

#include <ATen/core/Tensor.h>

#include <random>
#include <vector>

namespace dtensor::fuzz {

// The relative precision of the dtype.
double last_digit(c10::ScalarType dtype);
bool is_number(const at::Tensor& t);
// Perturbs the tensor without autograd. Does nothing if several elements share memory.
void write(const at::Tensor& t, const std::vector<double>& values);

struct Rounding {
  double scale = 0;       // of the addends that determine the rounding; 0: only that of the values themselves
  bool signs = false;     // signs of zeros are arbitrary
  bool always = false;    // also values of few digits, which another computation may give exactly
  bool added_up = false;  // they are read to be added up in their own dtype
};
void disturb(const at::Tensor& t, const Rounding& rounding, std::mt19937_64& random);

}  // namespace dtensor::fuzz
