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

// `scale`: of the addends whose rounding the values have; 0: they have their own only, those of few digits none. `signs`: of
// zeros are open, too.
void disturb(const at::Tensor& t, double scale, bool signs, std::mt19937_64& random);

}  // namespace dtensor::fuzz
