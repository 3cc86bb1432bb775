#include "examples/serving/requests.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <random>
#include <sstream>

namespace examples {
namespace {

// One line. Error (ValueError): see parse_requests().
Request parse_line(const std::string& line, int64_t number, int64_t vocab, int64_t capacity) {
  std::istringstream in(line);
  Request request;
  in >> request.arrival >> request.new_tokens;
  while (!(in >> std::ws).eof()) {
    int64_t id = 0;
    TORCH_CHECK_VALUE(in >> id, "requests, line ", number, ": '", line, "' is not STEP NEW_TOKENS ID ...");
    TORCH_CHECK_VALUE(id >= 0 && id < vocab, "requests, line ", number, ": id ", id, " is not below the vocabulary of ",
                      vocab);
    request.prompt.push_back(id);
  }
  TORCH_CHECK_VALUE(!request.prompt.empty() && request.arrival >= 0, "requests, line ", number, ": '", line,
                    "' is not STEP NEW_TOKENS ID ...");
  TORCH_CHECK_VALUE(request.new_tokens >= 1, "requests, line ", number, ": ", request.new_tokens,
                    " new tokens: at least 1 is expected");
  const auto length = static_cast<int64_t>(request.prompt.size());
  TORCH_CHECK_VALUE(request.new_tokens <= capacity - length, "requests, line ", number, ": ", length, " tokens and ",
                    request.new_tokens, " new ones are more than the capacity, ", capacity);
  return request;
}

}  // namespace

std::vector<Request> parse_requests(const std::string& text, int64_t vocab, int64_t capacity) {
  std::vector<Request> requests;
  std::istringstream lines(text);
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    line = line.substr(0, line.find('#'));
    line.erase(line.find_last_not_of(" \t\r") + 1);
    if (!line.empty()) requests.push_back(parse_line(line, number, vocab, capacity));
  }
  return requests;
}

std::string random_requests(int64_t count, int64_t vocab, int64_t capacity, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  std::ostringstream text;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = 1 + below(std::max<int64_t>(capacity / 2, 1));
    const int64_t new_tokens = std::max<int64_t>(std::min(1 + below(capacity / 2 + 1), capacity - length), 1);
    text << 3 * i << ' ' << new_tokens;
    for (int64_t k = 0; k < length; ++k) text << ' ' << below(vocab);
    text << '\n';
  }
  return text.str();
}

}  // namespace examples
