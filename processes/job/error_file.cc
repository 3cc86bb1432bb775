#include "processes/job/error_file.h"

#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>

namespace dtensor::internal {

void write_error_file(const std::string& path, const std::string& message) noexcept try {
  if (path.empty()) return;
  using Json = nlohmann::json;
  // The format of torch.distributed.elastic's ErrorHandler. The time is a text of whole seconds: torchrun reads nothing
  // else.
  const Json extra = {{"py_callstack", ""}, {"timestamp", std::to_string(std::time(nullptr))}};
  const Json file = {{"message", {{"message", message}, {"extraInfo", extra}}}};
  // torchrun may read at any time: let the file appear whole.
  const std::string whole = path + "." + std::to_string(::getpid());
  std::ofstream out(whole);
  out << file.dump(-1, ' ', false, Json::error_handler_t::replace);
  out.close();
  if (!out || std::rename(whole.c_str(), path.c_str()) != 0) std::remove(whole.c_str());
} catch (const std::exception&) {
}

}  // namespace dtensor::internal
