// A plain tensor as an argument beside a distributed one: where it counts as replicated, and the error where it does
// not.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "mesh/device_mesh.h"

namespace dtensor {

// In backward, in an ImplicitReplication scope, or in the code of a composite operator that was given none by the user.
bool plain_is_replicated();

// What a program that has nested tensors can do instead, as the end of an error's text.
inline constexpr char kInPlaceOfNested[] =
    "Pad the sequences (torch::nn::utils::rnn::pad_sequence), or pack them, and distribute the result.";

// The error, about argument `argument` of `function`.
[[noreturn]] void throw_plain_beside_distributed(std::string_view function, std::string_view argument,
                                                 const at::Tensor& t, const DeviceMesh& mesh);

}  // namespace dtensor
