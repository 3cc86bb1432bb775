// Code shared by saving and loading of modules and of optimizers.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <new>
#include <stdexcept>
#include <string>
#include <string_view>

namespace dtensor::internal {

// Error (TypeError): tensors of this dtype or layout cannot be written by torch and read again. The text has `name`, if
// there is one.
void check_can_be_stored(const at::Tensor& t, const std::string& name);

// The value of a tensor, distributed or plain, as a plain tensor on the CPU without unused memory. Error
// (NotImplementedError): this process lacks values.
at::Tensor whole_value(const at::Tensor& t);

// Writes `value` (plain or distributed, of equal shape, any dtype and device) to the memory of `target`; layout and
// dtype stay. Each rank takes its part of its own `value`: no communication for plain ones.
void copy_into(const at::Tensor& target, const at::Tensor& value);

// Runs a load from the file at `path`. Its errors name the file and are c10::Errors, also those of LibTorch's own
// loaders for a damaged file: malformed numbers, failed allocations.
template <typename F>
void with_path(const std::string& path, const F& load) try {
  load();
} catch (c10::Error& e) {
  if (std::string_view(e.what_without_backtrace()).find(path) == std::string_view::npos)
    e.add_context("while loading '" + path + "'");
  throw;
} catch (const std::bad_alloc&) {
  TORCH_CHECK(false, "[load] '", path, "': there is not enough memory for it");
} catch (const std::logic_error& e) {
  TORCH_CHECK(false, "[load] '", path, "': damaged: ", e.what());
}

}  // namespace dtensor::internal
