// Python's pickle language, as far as files of torch need it.
//
// The language is a small stack machine. It supports operations for numbers, strings, lists, tuples and dicts; other
// requests of a pickle (a function's result, an object of a class, a value from outside) go to `hooks`, which support a
// fixed few. So a file cannot make this process run code.
//
// Lists and dicts are shared, as in Python, and may even contain themselves: code that traverses a value uses a
// WalkLimit. All of them belong to the Pickle, and strings are parts of its text, so that a value is a few words
// without an owner. Memory is bounded: kMostValues, and what hooks take.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dtensor::internal {

struct PickleList;
struct PickleDict;
struct PickleObject;

// A function or class by name: {"torch._utils", "_rebuild_tensor_v2"}.
struct PickleGlobal {
  std::string_view module, name;
  std::string to_string() const { return std::string(module) + "." + std::string(name); }
};

struct PickleValue : std::variant<std::monostate, bool, int64_t, double, std::string_view, at::Tensor, PickleGlobal,
                                  PickleList*, PickleDict*, PickleObject*> {
  using variant::variant;
  // Error (c10::Error): it is something else; the text says that `what` was expected.
  template <typename T>
  const T& as(const char* what) const {
    const T* value = std::get_if<T>(this);
    if (value == nullptr) wrong_kind(what);
    return *value;
  }
  [[noreturn]] static void wrong_kind(const char* what);
};

struct PickleList {
  std::vector<PickleValue> items;
  bool tuple = false;
  std::string_view element;  // "int", "double", "bool", "tensor" where TorchScript says of what it is a list
};
struct PickleDict {
  std::vector<std::pair<PickleValue, PickleValue>> items;  // in the order of the file
};
struct PickleObject {
  PickleGlobal type;
  PickleValue state;  // argument for the class to restore itself: None, or most often a dict
};

class Pickle {
 public:
  static constexpr size_t kMostValues = 10'000'000;

  struct Hooks {
    // The value that `id` stands for.
    std::function<PickleValue(const PickleValue& id)> outside;
    // The result of a call.
    std::function<PickleValue(Pickle& pickle, const std::string& function, const PickleList& arguments)> call;
    // Whether objects of a class are allowed; they are PickleObjects.
    std::function<bool(const std::string& type)> knows_class;
  };

  // Error (c10::Error): damaged, unknown to the hooks, or too large.
  Pickle(std::string text, const Hooks& hooks);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return root_; }
  size_t values() const { return values_; }  // how many were made
  // For hooks.
  PickleDict* new_dict() { return &dicts_.emplace_back(); }

 private:
  friend class PickleMachine;
  const std::string text_;
  std::deque<PickleList> lists_;
  std::deque<PickleDict> dicts_;
  std::deque<PickleObject> objects_;
  PickleValue root_;
  size_t values_ = 0;
};

// Ends a walk through a value that is deeper than any real one, or unfolds to more.
//
// Values that are shared are walked through again each time, and a few of them may share one another so that they
// unfold to millions. So there are no more steps than some for each value that the pickle made.
//
//   void walk(const PickleValue& v, WalkLimit& limit) { WalkLimit::Step step(limit); ... walk(inner, limit); }
//   WalkLimit limit(pickle);
//   walk(pickle.root(), limit);
class WalkLimit {
 public:
  static constexpr int kDeepest = 1000;
  static constexpr size_t kMostSteps = 4'000'000, kSomeSteps = 100'000, kStepsPerValue = 16;
  explicit WalkLimit(const Pickle& pickle);
  class Step {
   public:
    explicit Step(WalkLimit& limit);  // Error (c10::Error): too deep, or too many
    ~Step() { --limit_.depth_; }
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    WalkLimit& limit_;
  };

 private:
  int depth_ = 0;
  size_t steps_ = 0;
  const size_t most_steps_;
};

}  // namespace dtensor::internal
