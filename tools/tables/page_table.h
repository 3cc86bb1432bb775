// Tables of the documentation that a program makes, so that they cannot be wrong.
#pragma once

#include <string>

namespace dtensor::tools {

// A table of a page stands between two lines:
//   <!-- NAME: `./bazelw run TARGET -- --write` makes it -->
//   <!-- end of the NAME -->
struct PageTable {
  std::string page;    // "docs/redistribution.md"
  std::string name;    // "transition table"
  std::string target;  // "//tools:transition_table", the program that makes it
};

// By the program's flags: prints `text`; --write puts it into the page; --check COPY compares it with that of a copy of
// the page, says how to get it there and returns 1 where it is another one. Returns the exit code, else 0. Error
// (UsageError): the page cannot be read or written, or lacks the two lines.
int make_page_table(const PageTable& table, const std::string& text);

}  // namespace dtensor::tools
