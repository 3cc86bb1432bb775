// Dumps of flight recorders, two of them with a zero byte between, and the report on them.
#include "tests/readers/reader_fuzz.h"
#include "tools/flight/input.h"
#include "tools/flight/report.h"

using namespace dtensor;
using namespace dtensor::testing;
using dtensor::tools::FlightDump;
using dtensor::tools::UsageError;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text = text_of_input(data, size);
  const size_t middle = std::min(text.find('\0'), text.size());
  std::vector<FlightDump> dumps;
  const auto read = [&](const std::string& name, const std::string& part) {
    auto dump = read_or_refuse<UsageError>([&] { return tools::parse_flight_dump(name, part); });
    if (!dump) return;
    for (const auto& call : dump->calls) must(call.group < dump->groups.size(), "a call is of a group");
    dumps.push_back(*std::move(dump));
  };
  read("dump0", text.substr(0, middle));
  if (middle < text.size()) read("dump1", text.substr(middle + 1));
  if (dumps.empty()) return 0;
  read_or_refuse<UsageError>([&] { return tools::compare_flights(dumps, {.last = 5}).text.size(); });
  return 0;
}
