// Tensors inside torch's pickles: their bytes are records of the zip file that contains the pickle.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "checkpoint/formats/pickle_machine.h"

namespace dtensor::internal {

class ZipFile;

// Makes the tensors that a pickle asks for, on the CPU. Tensors of one record share memory, as they did when they were
// saved. A tensor reaches no further than its record, whatever the pickle says.
// Errors (c10::Error): a dtype that is not known, sizes, strides or an offset that do not fit, a record of another size
// than the pickle says.
class StoredTensors {
 public:
  explicit StoredTensors(const ZipFile& zip) : zip_(zip) {}

  // ('storage', torch.FloatStorage, '0', 'cpu', 12) -> a tensor that is the whole record "data/0".
  PickleValue storage(const PickleValue& id);
  // The result of `function`, if it is one that makes tensors or passes them on; nullopt: it is not.
  static std::optional<PickleValue> call(const std::string& function, const PickleList& arguments);

 private:
  const ZipFile& zip_;
  std::map<std::string, at::Storage, std::less<>> records_;
};

}  // namespace dtensor::internal
