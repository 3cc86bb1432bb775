// What the targets here share: a reader's answer, its claims, and a file in memory.
//
// A target is a source with the function that libFuzzer calls:
//
//   extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
//     if (const auto value = read_or_refuse([&] { return read_thing(text_of_input(data, size)); })) {
//       must(value->size() <= size, "a thing is no larger than its file");
//     }
//     return 0;
//   }
//
// A reader may refuse what it is given with a c10::Error. Every other exception, a claim that does not hold, and what
// the sanitizers see end the process, which libFuzzer and the test report with the input.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/Logging.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <utility>

// libFuzzer's: changes `data` of `size` bytes in place, to at most `max_size`; gives the new size.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace dtensor::testing {

// Errors without a stack trace, which is not used here: most inputs end in an error, and a stack trace takes longer
// than reading.
inline const bool kWithoutStacks = [] {
  c10::SetStackTraceFetcher([] { return c10::Backtrace(); });
  return true;
}();

inline void must(bool claim, const char* text) {
  if (claim) return;
  std::fprintf(stderr, "does not hold: %s\n", text);
  std::abort();
}

struct NothingElse : std::exception {};

// nullopt: refused, in words. `Refusal`: what else than c10::Error a program's reader throws.
template <typename Refusal = NothingElse, typename F>
auto read_or_refuse(const F& read) -> std::optional<decltype(read())> try {
  return read();
} catch (const c10::Error& e) {
  must(e.what_without_backtrace()[0] != '\0', "an error has a text");
  return std::nullopt;
} catch (const Refusal& e) {
  must(e.what()[0] != '\0', "an error has a text");
  return std::nullopt;
}

inline std::string text_of_input(const uint8_t* data, size_t size) {
  return std::string(reinterpret_cast<const char*>(data), size);
}

// For a mutator: `text` as the new input, cut to `max_size`.
inline size_t put_input(const std::string& text, uint8_t* data, size_t max_size) {
  const size_t n = text.copy(reinterpret_cast<char*>(data), max_size);
  return n;
}

// For a mutator: `text` as libFuzzer changes it, of at most `max_size` bytes.
inline std::string mutated(std::string text, size_t max_size) {
  const size_t n = text.size() < max_size ? text.size() : max_size;
  text.resize(max_size);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), n, max_size));
  return text;
}

// A file without a disk, for readers that take a path.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("input", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    must(fd_ >= 0, "there are files in memory");
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  void set(const void* data, size_t size) {
    must(ftruncate(fd_, 0) == 0 && pwrite(fd_, data, size, 0) == static_cast<ssize_t>(size), "it can be written");
  }
  const std::string& path() const { return path_; }

 private:
  int fd_;
  std::string path_;
};

// Reads every byte, so that a sanitizer or the kernel says which are not there.
inline void touch(const void* data, size_t size) {
  volatile const char* bytes = static_cast<volatile const char*>(data);
  for (size_t i = 0; i < size; ++i) (void)bytes[i];
}

}  // namespace dtensor::testing
