#include "tools/tables/page_table.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/flags/flag.h"
#include "absl/strings/str_cat.h"
#include "tools/flags.h"

ABSL_FLAG(bool, write, false, "put the table into its page of the documentation");
ABSL_FLAG(std::string, check, "", "a copy of the page: say whether its table is this one");

namespace dtensor::tools {
namespace {

std::string read_page(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw UsageError(absl::StrCat("the page ", path, " cannot be read; run from the repository"));
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

// `page` with `text` between the lines.
std::string with_table(const PageTable& table, const std::string& page, const std::string& text) {
  const std::string first =
      absl::StrCat("<!-- ", table.name, ": `./bazelw run ", table.target, " -- --write` makes it -->");
  const std::string last = absl::StrCat("<!-- end of the ", table.name, " -->");
  const size_t begin = page.find(first + "\n"), end = page.find(last + "\n");
  if (begin == std::string::npos || end == std::string::npos || end < begin) {
    throw UsageError(
        absl::StrCat(table.page, " lacks the line before the table, or the one after it: ", first, ", ", last));
  }
  return absl::StrCat(page.substr(0, begin + first.size() + 1), "\n", text, "\n", page.substr(end));
}

}  // namespace

int make_page_table(const PageTable& table, const std::string& text) {
  if (const std::string copy = absl::GetFlag(FLAGS_check); !copy.empty()) {
    const std::string page = read_page(copy);
    if (page == with_table(table, page, text)) return 0;
    std::cout << text << "\nThe table in " << table.page << " is another one. This command rewrites it:\n"
              << "  ./bazelw run " << table.target << " -- --write\n";
    return 1;
  }
  if (!absl::GetFlag(FLAGS_write)) {
    std::cout << text;
    return 0;
  }
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");
  const std::string path = absl::StrCat(workspace == nullptr ? "." : workspace, "/", table.page);
  const std::string page = with_table(table, read_page(path), text);
  std::ofstream out(path, std::ios::binary);
  if (!(out << page << std::flush)) throw UsageError(absl::StrCat(path, " cannot be written"));
  std::cout << table.page << " has the table now.\n";
  return 0;
}

}  // namespace dtensor::tools
