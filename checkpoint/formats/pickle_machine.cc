#include "checkpoint/formats/pickle_machine.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "absl/container/flat_hash_map.h"

namespace dtensor::internal {

class PickleMachine {
 public:
  PickleMachine(Pickle& pickle, const Pickle::Hooks& hooks) : pickle_(pickle), text_(pickle.text_), hooks_(hooks) {}

  size_t values() const { return values_; }

  PickleValue run() {
    for (;;) {
      const char op = take(1)[0];
      if (op == '.') return pop();
      execute(op);
    }
  }

 private:
  void execute(char op) {
    // clang-format off
    switch (op) {
      case '\x80': take(1); break;                                          // PROTO
      case '\x95': take(8); break;                                          // FRAME
      case '(': count(); marks_.push_back(stack_.size()); break;            // MARK
      case ')': push(list({}, true)); break;                                // EMPTY_TUPLE
      case ']': push(list({}, false)); break;                               // EMPTY_LIST
      case '}': push(pickle_.new_dict()); break;                            // EMPTY_DICT
      case 'N': push(std::monostate()); break;                              // NONE
      case '\x88': push(true); break;                                       // NEWTRUE
      case '\x89': push(false); break;                                      // NEWFALSE
      case 'K': push(int64_t{integer<uint8_t>()}); break;                   // BININT1
      case 'M': push(int64_t{integer<uint16_t>()}); break;                  // BININT2
      case 'J': push(int64_t{integer<int32_t>()}); break;                   // BININT
      case '\x8a': push(long_integer(integer<uint8_t>())); break;           // LONG1
      case 'G': push(big_endian_double()); break;                           // BINFLOAT
      case 'X': push(take(integer<uint32_t>())); break;                     // BINUNICODE
      case '\x8c': push(take(integer<uint8_t>())); break;                   // SHORT_BINUNICODE
      case '\x8d': push(take(integer<uint64_t>())); break;                  // BINUNICODE8
      case 'c': global(); break;                                            // GLOBAL
      case '\x93': stack_global(); break;                                   // STACK_GLOBAL
      case 't': push(list(pop_to_mark(), true)); break;                     // TUPLE
      case '\x85': push(list(pop_last(1), true)); break;                    // TUPLE1
      case '\x86': push(list(pop_last(2), true)); break;                    // TUPLE2
      case '\x87': push(list(pop_last(3), true)); break;                    // TUPLE3
      case 'q': remember(integer<uint8_t>()); break;                        // BINPUT
      case 'r': remember(integer<uint32_t>()); break;                       // LONG_BINPUT
      case '\x94': remember(static_cast<uint32_t>(memo_.size())); break;    // MEMOIZE
      case 'h': push(remembered(integer<uint8_t>())); break;                // BINGET
      case 'j': push(remembered(integer<uint32_t>())); break;               // LONG_BINGET
      case 'Q': push(hooks_.outside(pop())); break;                         // BINPERSID
      case 'R': call(); break;                                              // REDUCE
      case '\x81': new_object(); break;                                     // NEWOBJ
      case 'b': build(); break;                                             // BUILD
      case 's': set_items(pop_last(2)); break;                              // SETITEM
      case 'u': set_items(pop_to_mark()); break;                            // SETITEMS
      case 'a': append(pop_last(1)); break;                                 // APPEND
      case 'e': append(pop_to_mark()); break;                               // APPENDS
      default: TORCH_CHECK(false, "damaged, or not written by torch: unknown pickle code ",
                           static_cast<int>(static_cast<uint8_t>(op)));
    }
    // clang-format on
  }

  using Values = std::vector<PickleValue>;

  std::string_view take(uint64_t n) {
    TORCH_CHECK(n <= text_.size() - position_, "damaged: it ends too early");
    const auto bytes = text_.substr(position_, n);
    position_ += n;
    return bytes;
  }
  std::string_view line() {
    const size_t end = text_.find('\n', position_);
    TORCH_CHECK(end != std::string_view::npos, "damaged: it ends too early");
    const auto bytes = take(end - position_);
    take(1);
    return bytes;
  }
  template <typename T>
  T integer() {  // little endian, as this machine
    T v;
    std::memcpy(&v, take(sizeof v).data(), sizeof v);
    return v;
  }
  int64_t long_integer(size_t bytes) {
    TORCH_CHECK(bytes <= 8, "an integer of more than 64 bits cannot be read");
    const auto s = take(bytes);
    uint64_t v = !s.empty() && (s.back() & 0x80) != 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes; i-- > 0;) v = (v << 8) | static_cast<uint8_t>(s[i]);
    return static_cast<int64_t>(v);
  }
  double big_endian_double() {
    uint64_t bits = 0;
    for (char c : take(8)) bits = (bits << 8) | static_cast<uint8_t>(c);
    double v;
    std::memcpy(&v, &bits, sizeof v);
    return v;
  }

  void count() { TORCH_CHECK(++values_ <= Pickle::kMostValues, "it holds more than ", Pickle::kMostValues, " values"); }
  void push(PickleValue v) {
    count();
    stack_.push_back(std::move(v));
  }
  PickleList* list(Values items, bool tuple) {
    return &pickle_.lists_.emplace_back(PickleList{std::move(items), tuple, {}});
  }
  // Operations above a mark cannot use values below it.
  size_t available() const { return stack_.size() - (marks_.empty() ? 0 : marks_.back()); }
  const PickleValue& top() const {
    TORCH_CHECK(available() > 0, "damaged: a value is missing");
    return stack_.back();
  }
  PickleValue pop() { return std::move(pop_last(1)[0]); }
  Values pop_last(size_t n) {
    TORCH_CHECK(n <= available(), "damaged: a value is missing");
    Values values(std::make_move_iterator(stack_.end() - static_cast<std::ptrdiff_t>(n)),
                  std::make_move_iterator(stack_.end()));
    stack_.resize(stack_.size() - n);
    return values;
  }
  Values pop_to_mark() {
    TORCH_CHECK(!marks_.empty(), "damaged: a mark is missing");
    Values values = pop_last(available());
    marks_.pop_back();
    return values;
  }
  void remember(uint32_t key) {
    count();
    memo_[key] = top();
  }
  const PickleValue& remembered(uint32_t key) const {
    const auto it = memo_.find(key);
    TORCH_CHECK(it != memo_.end(), "damaged: it refers to a value that is not there");
    return it->second;
  }
  void global() {
    const auto module = line();
    push(PickleGlobal{module, line()});
  }
  void stack_global() {
    const Values names = pop_last(2);
    push(PickleGlobal{names[0].as<std::string_view>("a module name"), names[1].as<std::string_view>("a class name")});
  }
  void call() {
    const Values parts = pop_last(2);
    const auto& function = parts[0].as<PickleGlobal>("a function");
    push(hooks_.call(pickle_, function.to_string(), *parts[1].as<PickleList*>("arguments")));
  }
  void new_object() {
    const Values parts = pop_last(2);
    const auto& type = parts[0].as<PickleGlobal>("a class");
    TORCH_CHECK(hooks_.knows_class(type.to_string()), "it holds an object of class ", type.to_string(),
                ", which is not read; store tensors, for instance torch.save(model.state_dict(), path)");
    push(&pickle_.objects_.emplace_back(PickleObject{type, {}}));
  }
  void build() {
    PickleValue state = pop();
    if (const auto* object = std::get_if<PickleObject*>(&top())) (*object)->state = std::move(state);
    // Else Python's attributes of a dict or tensor, as _metadata of a state_dict.
  }
  void set_items(Values items) {
    TORCH_CHECK(items.size() % 2 == 0, "damaged: a key of a dict lacks its value");
    auto& dict = *top().as<PickleDict*>("a dict");
    for (size_t i = 0; i < items.size(); i += 2) dict.items.emplace_back(std::move(items[i]), std::move(items[i + 1]));
  }
  void append(Values items) {
    auto& list = *top().as<PickleList*>("a list");
    TORCH_CHECK(!list.tuple, "damaged: a list expected, not a tuple");
    for (auto& item : items) list.items.push_back(std::move(item));
  }

  Pickle& pickle_;
  const std::string_view text_;
  const Pickle::Hooks& hooks_;
  size_t position_ = 0, values_ = 0;
  Values stack_;
  std::vector<size_t> marks_;
  absl::flat_hash_map<uint32_t, PickleValue> memo_;
};

void PickleValue::wrong_kind(const char* what) { TORCH_CHECK(false, "damaged: ", what, " expected"); }

Pickle::Pickle(std::string text, const Hooks& hooks) : text_(std::move(text)) {
  PickleMachine machine(*this, hooks);
  root_ = machine.run();
  values_ = machine.values();
}

WalkLimit::WalkLimit(const Pickle& pickle)
    : most_steps_(std::min(kMostSteps, kSomeSteps + kStepsPerValue * pickle.values())) {}

WalkLimit::Step::Step(WalkLimit& limit) : limit_(limit) {
  TORCH_CHECK(limit.depth_ < kDeepest, "its values contain one another more than ", kDeepest, " deep, or themselves");
  TORCH_CHECK(++limit.steps_ <= limit.most_steps_, "it unfolds to more than ", limit.most_steps_, " values");
  ++limit.depth_;
}

}  // namespace dtensor::internal
