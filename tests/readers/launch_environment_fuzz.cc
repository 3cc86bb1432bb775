// What launchers say in variables, "NAME=VALUE" per line. The place in the job is one.
#include <map>

#include "processes/launch/launch_env.h"
#include "processes/launch/launch_store.h"
#include "tests/readers/reader_fuzz.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::map<std::string, std::string> values;
  const std::string text = text_of_input(data, size);
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size()), equals = text.find('=', at);
    if (equals < end) values[text.substr(at, equals - at)] = text.substr(equals + 1, end - equals - 1);
    at = end + 1;
  }
  const Variables variables = [&](const char* name) {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
  const auto place = read_or_refuse([&] { return find_job_place({}, variables); });
  if (!place) return 0;
  must(place->world_size >= 1 && place->rank >= 0 && place->rank < place->world_size, "a rank is one of its world");
  must(place->local_rank >= -1 && place->restart_count >= 0 && place->timeout.count() > 0, "numbers are in range");
  must(place->local_world_size == -1 || place->local_world_size >= 1, "a host has a process at least");
  must(place->launcher == Launcher::kNone || place->world_size == 1 || !place->store.empty(), "several ranks can meet");
  if (!place->store.empty()) read_or_refuse([&] { return parse_store(place->store, "the store"); });
  return 0;
}
