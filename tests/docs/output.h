// What a code block of the documentation prints or throws, against what the page says. For the file that
// tools/doc_blocks.py makes.
#pragma once

#include <c10/util/Exception.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/testing/catch_torch.h"

namespace dtensor::testing {

// Captures std::cout for as long as it lives.
class Output {
 public:
  Output(std::string expected, bool checked)
      : expected_(std::move(expected)),
        checked_(checked),
        old_(std::cout.rdbuf(text_.rdbuf())),
        old_flags_(std::cout.flags()) {}
  ~Output() { stop(); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  // Forgets what the blocks before this one have printed.
  void begin() { text_.str(""); }

  // What `block` throws is the output; lines may be broken elsewhere.
  template <typename F>
  void throws(const F& block) {
    std::string message;
    try {
      block();
    } catch (const c10::Error& e) {
      message = e.what_without_backtrace();
    } catch (const std::exception& e) {
      message = e.what();
    }
    CHECK_FALSE(message.empty());
    begin();
    text_ << one_line(message);
    expected_ = one_line(expected_);
  }

  void check() {
    stop();
    if (!checked_) return;
    INFO("expected:\n" << expected_ << "\ngot:\n" << text_.str());
    const bool same = matches(lines(expected_), lines(text_.str()));
    CHECK(same);
  }

 private:
  using Lines = std::vector<std::string>;

  void stop() {
    std::cout.rdbuf(old_);
    std::cout.flags(old_flags_);
  }

  static std::string one_line(const std::string& text) {
    std::istringstream in(text);
    std::string result;
    for (std::string word; in >> word;) result += (result.empty() ? "" : " ") + word;
    return result;
  }

  // Without spaces at the ends of lines, and without empty lines at the end.
  static Lines lines(const std::string& text) {
    Lines result;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) {
      line.erase(line.find_last_not_of(" \t\r") + 1);
      result.push_back(line);
    }
    while (!result.empty() && result.back().empty()) result.pop_back();
    return result;
  }

  // A line "..." matches any number of lines.
  static bool matches(const Lines& expected, const Lines& got, size_t i = 0, size_t j = 0) {
    if (i == expected.size()) return j == got.size();
    if (expected[i] == "...") {
      for (size_t k = j; k <= got.size(); ++k) {
        if (matches(expected, got, i + 1, k)) return true;
      }
      return false;
    }
    return j < got.size() && expected[i] == got[j] && matches(expected, got, i + 1, j + 1);
  }

  std::string expected_;
  bool checked_;
  std::ostringstream text_;
  std::streambuf* old_;
  std::ios_base::fmtflags old_flags_;
};

}  // namespace dtensor::testing
