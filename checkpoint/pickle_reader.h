// Reads the tensors that Python's torch.save wrote. Internal.
//
// The pickle language is a small stack machine; only what builds numbers, strings, lists, dicts and tensors is
// understood, so a file cannot make this process run anything. LibTorch's own reader (torch::pickle_load) drops
// Python's OrderedDict, which is what every state_dict is.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace caffe2::serialize {
class PyTorchStreamReader;
}

namespace dtensor {

// See read_tensors() in tensor_file.h.
std::map<std::string, at::Tensor> read_pickled_tensors(caffe2::serialize::PyTorchStreamReader& zip);

}  // namespace dtensor
