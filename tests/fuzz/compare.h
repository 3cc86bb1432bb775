// Whether a distributed tensor is the distributed form of a plain one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::fuzz {

// The allowed difference between two computations of a value, relative to the largest element.
double tolerance_of(c10::ScalarType dtype);

// The elements row by row; complex numbers are pairs. `t` is plain.
std::vector<double> numbers(const at::Tensor& t);

// Differs beyond the tolerance, relative to `scale`. NaN equals NaN.
bool differs(double actual, double expected, double scale, double tolerance);
// The largest finite magnitude.
double scale_of(const std::vector<double>& values);

// The largest finite magnitude among the addends of a distributed Partial sum or average; 0 for others. Sums are
// rounded relative to it, however small they are.
double addend_scale(const at::Tensor& t);

// The fault of `actual`: plain, another dtype or shape, a part of another shape than the layout's, or a wrong value on
// some rank; combines the ranks' parts without the library's own redistributions. nullopt: none.
std::optional<std::string> difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance);

}  // namespace dtensor::fuzz
