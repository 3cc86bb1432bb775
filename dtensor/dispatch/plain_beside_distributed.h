// A plain tensor as an argument next to a distributed one: where it counts as replicated, and the errors elsewhere.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "mesh/device_mesh.h"

namespace dtensor::internal {

// True in backward, in an ImplicitReplication scope, and in the code of a composite operator to which the user passed
// no plain tensor.
bool plain_is_replicated();

// The end of an error's text: the alternative to nested tensors.
inline constexpr char kInPlaceOfNested[] =
    "Pad the sequences (torch::nn::utils::rnn::pad_sequence), or pack them, and distribute the result.";

// Throws the error about argument `argument` of `function`.
[[noreturn]] void throw_plain_beside_distributed(std::string_view function, std::string_view argument,
                                                 const at::Tensor& t, const DeviceMesh& mesh);

// Throws the error about assigning `plain` to `self`; the text names what to call instead of torch::load(). REQUIRES:
// is_dtensor(self).
[[noreturn]] void throw_plain_in_place_of(std::string_view function, const at::Tensor& self, const at::Tensor& plain);

}  // namespace dtensor::internal
