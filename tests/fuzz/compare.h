// Whether a distributed tensor is the distributed form of a plain one.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace dtensor::fuzz {

// How far apart two computations of the same value may be, relative to the largest element.
double tolerance_of(c10::ScalarType dtype);

// The elements row by row; complex numbers are pairs. `t` is plain.
std::vector<double> numbers(const at::Tensor& t);

// Differs beyond the tolerance, relative to `scale`. NaN equals NaN.
bool differs(double actual, double expected, double scale, double tolerance);
// The largest finite magnitude.
double scale_of(const std::vector<double>& values);

// The largest finite magnitude among what the ranks hold of a distributed tensor that are to be added up or averaged; 0
// for any other. Sums are rounded relative to it, however small they are.
double addend_scale(const at::Tensor& t);

// What is wrong with `actual`: plain, another dtype or shape, a part of another shape than the layout says, or a value
// on some rank; the ranks' parts are put together here, without the library's own redistributions. nullopt: nothing.
std::optional<std::string> difference(const at::Tensor& actual, const at::Tensor& expected, double tolerance);

}  // namespace dtensor::fuzz
