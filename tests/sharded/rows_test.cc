// The table of docs/sharded_tensor.md: every row that was asked for is there, and its tests are where it says.
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/sharded/test_world.h"
#include "tests/testing/catch_torch.h"

namespace dtensor::sharded {
namespace {

std::string read(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string about(const std::string& id, const char* what, const std::string& where) { return id + what + where; }

// The names of the test cases in a source.
std::string names_in(const std::string& source) {
  std::string names;
  static const std::regex kCase("TEST_CASE\\(\\s*\"([^\"]*)\"");
  for (std::sregex_iterator it(source.begin(), source.end(), kCase), end; it != end; ++it)
    names += (*it)[1].str() + "\n";
  return names;
}

TEST_CASE("T21: the page names upstream's deprecation of this layer, and the migration to DTensor") {
  const std::string page = read("docs/sharded_tensor.md");
  CHECK_THAT(page, Catch::Contains("deprecat") && Catch::Contains("distribute_tensor(") && Catch::Contains("| T21 |"));
}

TEST_CASE("every row has a test of its name, in the documented file") {
  const std::map<std::string, int> areas = {
      {"RD", 4}, {"SM", 3}, {"TP", 4}, {"CS", 5}, {"ES", 4},   {"IS", 2}, {"US", 1}, {"SH", 2},  {"ST", 19},
      {"IL", 7}, {"IM", 2}, {"IT", 2}, {"SG", 2}, {"GA", 6},   {"RS", 6}, {"MV", 4}, {"RR", 4},  {"SD", 5},
      {"SP", 7}, {"HK", 2}, {"PL", 1}, {"OP", 7}, {"SMOD", 7}, {"EB", 5}, {"SO", 5}, {"DE", 14}, {"LT", 3}};
  const std::string page = read("docs/sharded_tensor.md");
  REQUIRE(!page.empty());
  std::map<std::string, std::set<std::string>> files;
  static const std::regex kRow("\\n\\| ([A-Z]{2,4}-[0-9]+) \\|[^|]*\\|([^|]*)\\| ([^|\\n]*) \\|");
  static const std::regex kLink("\\]\\(\\.\\./([^)]*)\\)");
  for (std::sregex_iterator it(page.begin(), page.end(), kRow), end; it != end; ++it) {
    auto& of_row = files[(*it)[1]];
    const std::string links = (*it)[2];
    for (std::sregex_iterator link(links.begin(), links.end(), kLink); link != end; ++link) of_row.insert((*link)[1]);
    CHECK((*it)[3].str().find("missing") == std::string::npos);
  }
  size_t rows = 0;
  for (const auto& [area, count] : areas) {
    for (int i = 1; i <= count; ++i, ++rows) {
      const std::string id = area + "-" + std::to_string(i);
      CHECK_THAT(files[id].empty() ? about(id, " has no test in ", "the table") : "", Catch::Equals(""));
      const std::regex named("(^|[^A-Z0-9])" + id + "($|[^0-9])");
      for (const std::string& file : files[id]) {
        const bool found = std::regex_search(names_in(read(file)), named);
        CHECK_THAT(found ? "" : about(id, " names no test of ", file), Catch::Equals(""));
      }
    }
  }
  CHECK(rows == 133);
  CHECK(files.size() == 133);
}

}  // namespace
}  // namespace dtensor::sharded
