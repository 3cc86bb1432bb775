// What a server is to generate: a text with a line per request,
//
//   STEP NEW_TOKENS ID ID ID ...      # arrives at that step, and wants so many tokens after these
//
// of integers; empty lines and what follows a '#' do not count.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace examples {

struct Request {
  int64_t arrival = 0;     // step of the server before which it is not seen
  int64_t new_tokens = 1;  // to generate
  std::vector<int64_t> prompt;
};

// In the order of the text. Error (ValueError), with the number of the line: what is no such line, a number of new
// tokens below 1, an id that is not below `vocab`, more tokens than `capacity`.
std::vector<Request> parse_requests(const std::string& text, int64_t vocab, int64_t capacity);

// Some, of random ids and lengths, that arrive one after the other: the text of them.
std::string random_requests(int64_t count, int64_t vocab, int64_t capacity, uint64_t seed);

}  // namespace examples
