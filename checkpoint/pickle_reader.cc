#include "checkpoint/pickle_reader.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <caffe2/serialize/inline_container.h>

#include <cstring>
#include <memory>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace dtensor {
namespace {

struct Value;
using Values = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;
struct Global {
  std::string name;  // "torch._utils._rebuild_tensor_v2"
};
// Containers are shared, as in Python: the memo refers to the same one.
struct Value : std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, Global,
                            std::shared_ptr<Values>, std::shared_ptr<Dict>> {
  using variant::variant;
  template <typename T>
  const T& as(const char* what) const {
    const T* value = std::get_if<T>(this);
    TORCH_CHECK(value != nullptr, "damaged: ", what, " expected");
    return *value;
  }
};

c10::ScalarType dtype_of_storage(const std::string& name) {
  static const absl::flat_hash_map<std::string, c10::ScalarType> types{
      {"torch.DoubleStorage", at::kDouble},
      {"torch.FloatStorage", at::kFloat},
      {"torch.HalfStorage", at::kHalf},
      {"torch.BFloat16Storage", at::kBFloat16},
      {"torch.LongStorage", at::kLong},
      {"torch.IntStorage", at::kInt},
      {"torch.ShortStorage", at::kShort},
      {"torch.CharStorage", at::kChar},
      {"torch.ByteStorage", at::kByte},
      {"torch.BoolStorage", at::kBool},
      {"torch.ComplexFloatStorage", at::kComplexFloat},
      {"torch.ComplexDoubleStorage", at::kComplexDouble}};
  const auto it = types.find(name);
  TORCH_CHECK(it != types.end(), "tensors of ", name, " cannot be read");
  return it->second;
}

class PickleReader {
 public:
  explicit PickleReader(caffe2::serialize::PyTorchStreamReader& zip) : zip_(zip) {
    auto [data, size] = zip_.getRecord("data.pkl");
    pickle_.assign(static_cast<const char*>(data.get()), size);
  }

  Value read() {
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
      case '\x80': take(1); break;                                             // PROTO
      case '\x95': take(8); break;                                             // FRAME
      case '(': marks_.push_back(stack_.size()); break;                        // MARK
      case ')': push(std::make_shared<Values>()); break;                       // EMPTY_TUPLE
      case ']': push(std::make_shared<Values>()); break;                       // EMPTY_LIST
      case '}': push(std::make_shared<Dict>()); break;                         // EMPTY_DICT
      case 'N': push(std::monostate()); break;                                 // NONE
      case '\x88': push(true); break;                                          // NEWTRUE
      case '\x89': push(false); break;                                         // NEWFALSE
      case 'K': push(int64_t{integer<uint8_t>()}); break;                      // BININT1
      case 'M': push(int64_t{integer<uint16_t>()}); break;                     // BININT2
      case 'J': push(int64_t{integer<int32_t>()}); break;                      // BININT
      case '\x8a': push(long_integer(integer<uint8_t>())); break;              // LONG1
      case 'G': push(big_endian_double()); break;                              // BINFLOAT
      case 'X': push(std::string(take(integer<uint32_t>()))); break;           // BINUNICODE
      case '\x8c': push(std::string(take(integer<uint8_t>()))); break;         // SHORT_BINUNICODE
      case 'c': global(); break;                                               // GLOBAL
      case '\x93': stack_global(); break;                                      // STACK_GLOBAL
      case 't': push(std::make_shared<Values>(pop_to_mark())); break;          // TUPLE
      case '\x85': tuple(1); break;                                            // TUPLE1
      case '\x86': tuple(2); break;                                            // TUPLE2
      case '\x87': tuple(3); break;                                            // TUPLE3
      case 'q': memo_[integer<uint8_t>()] = top(); break;                      // BINPUT
      case 'r': memo_[integer<uint32_t>()] = top(); break;                     // LONG_BINPUT
      case '\x94': memo_[static_cast<uint32_t>(memo_.size())] = top(); break;  // MEMOIZE
      case 'h': push(remembered(integer<uint8_t>())); break;                   // BINGET
      case 'j': push(remembered(integer<uint32_t>())); break;                  // LONG_BINGET
      case 'Q': push(load_storage(pop())); break;                              // BINPERSID
      case 'R': reduce(); break;                                               // REDUCE
      case 'b': pop(); break;                                                  // BUILD: attributes, as _metadata of a state_dict
      case 's': set_items(pop_last(2)); break;                                 // SETITEM
      case 'u': set_items(pop_to_mark()); break;                               // SETITEMS
      case 'a': append(pop_last(1)); break;                                    // APPEND
      case 'e': append(pop_to_mark()); break;                                  // APPENDS
      default: TORCH_CHECK(false, "damaged, or not written by torch: unknown pickle code ", static_cast<int>(static_cast<uint8_t>(op)));
    }
    // clang-format on
  }

  std::string_view take(size_t n) {
    TORCH_CHECK(n <= pickle_.size() - position_, "damaged: it ends too early");
    const auto bytes = std::string_view(pickle_).substr(position_, n);
    position_ += n;
    return bytes;
  }
  std::string line() {
    const size_t end = pickle_.find('\n', position_);
    TORCH_CHECK(end != std::string::npos, "damaged: it ends too early");
    std::string s(take(end - position_));
    take(1);
    return s;
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

  void push(Value v) { stack_.push_back(std::move(v)); }
  const Value& top() const {
    TORCH_CHECK(!stack_.empty(), "damaged: a value is missing");
    return stack_.back();
  }
  Value pop() { return std::move(pop_last(1)[0]); }
  Values pop_last(size_t n) {
    TORCH_CHECK(n <= stack_.size(), "damaged: a value is missing");
    Values values(std::make_move_iterator(stack_.end() - static_cast<std::ptrdiff_t>(n)),
                  std::make_move_iterator(stack_.end()));
    stack_.resize(stack_.size() - n);
    return values;
  }
  Values pop_to_mark() {
    TORCH_CHECK(!marks_.empty() && marks_.back() <= stack_.size(), "damaged: a mark is missing");
    const size_t n = stack_.size() - marks_.back();
    marks_.pop_back();
    return pop_last(n);
  }
  void tuple(size_t n) { push(std::make_shared<Values>(pop_last(n))); }
  const Value& remembered(uint32_t key) const {
    const auto it = memo_.find(key);
    TORCH_CHECK(it != memo_.end(), "damaged: it refers to a value that is not there");
    return it->second;
  }
  void global() {
    const std::string module = line();
    push(Global{absl::StrCat(module, ".", line())});
  }
  void stack_global() {
    const Values names = pop_last(2);
    push(
        Global{absl::StrCat(names[0].as<std::string>("a module name"), ".", names[1].as<std::string>("a class name"))});
  }
  void set_items(Values items) {
    auto& dict = *top().as<std::shared_ptr<Dict>>("a dict");
    for (size_t i = 0; i + 1 < items.size(); i += 2) dict.emplace_back(std::move(items[i]), std::move(items[i + 1]));
  }
  void append(Values items) {
    auto& list = *top().as<std::shared_ptr<Values>>("a list");
    for (auto& item : items) list.push_back(std::move(item));
  }

  // ('storage', torch.FloatStorage, '0', 'cpu', 12) -> a tensor that is the whole storage.
  Value load_storage(const Value& id) {
    const Values& parts = *id.as<std::shared_ptr<Values>>("a storage");
    TORCH_CHECK(parts.size() >= 5, "damaged: a storage is incomplete");
    const auto dtype = dtype_of_storage(parts[1].as<Global>("a storage class").name);
    const std::string& key = parts[2].as<std::string>("a storage key");
    if (const auto it = storages_.find(key); it != storages_.end()) return it->second;
    auto [data, size] = zip_.getRecord("data/" + key);
    at::Storage storage(at::Storage::use_byte_size_t(), size, std::move(data), nullptr, /*resizable=*/false);
    const int64_t numel = static_cast<int64_t>(size / c10::elementSize(dtype));
    at::Tensor whole = at::empty({0}, dtype).set_(storage, 0, {numel}, {1});
    storages_.emplace(key, whole);
    return whole;
  }

  static std::vector<int64_t> integers(const Value& v) {
    std::vector<int64_t> result;
    for (const Value& x : *v.as<std::shared_ptr<Values>>("sizes")) result.push_back(x.as<int64_t>("a size"));
    return result;
  }

  void reduce() {
    const Values call = pop_last(2);
    const std::string& function = call[0].as<Global>("a function").name;
    const Values& args = *call[1].as<std::shared_ptr<Values>>("arguments");
    const auto need = [&](size_t n) { TORCH_CHECK(args.size() >= n, "damaged: ", function, " lacks arguments"); };
    if (function == "collections.OrderedDict") {
      push(std::make_shared<Dict>());
    } else if (function == "torch._utils._rebuild_tensor_v2") {  // storage, offset, size, stride, requires_grad, hooks
      need(4);
      const at::Tensor& whole = args[0].as<at::Tensor>("a storage");
      const auto sizes = integers(args[2]), strides = integers(args[3]);
      const int64_t offset = args[1].as<int64_t>("an offset");
      TORCH_CHECK(sizes.size() == strides.size(), "damaged: sizes and strides differ in number");
      push(at::empty({0}, whole.options()).set_(whole.storage(), offset, sizes, strides));
    } else if (function == "torch._utils._rebuild_parameter" || function == "torch.jit._pickle.restore_type_tag") {
      need(1);
      push(args[0]);
    } else {
      TORCH_CHECK(false, "it holds an object made by ", function,
                  ", which is not read; store tensors, for instance torch.save(model.state_dict(), path)");
    }
  }

  caffe2::serialize::PyTorchStreamReader& zip_;
  std::string pickle_;
  size_t position_ = 0;
  Values stack_;
  std::vector<size_t> marks_;
  absl::flat_hash_map<uint32_t, Value> memo_;
  absl::flat_hash_map<std::string, at::Tensor> storages_;
};

void flatten(const Value& value, const std::string& name, std::map<std::string, at::Tensor>& out) {
  const auto inside = [&](const std::string& key) { return name.empty() ? key : name + "." + key; };
  if (const auto* t = std::get_if<at::Tensor>(&value)) {
    out.emplace(name.empty() ? "0" : name, *t);
  } else if (const auto* dict = std::get_if<std::shared_ptr<Dict>>(&value)) {
    for (const auto& [k, v] : **dict) {
      if (const auto* s = std::get_if<std::string>(&k)) {
        flatten(v, inside(*s), out);
      } else if (const auto* i = std::get_if<int64_t>(&k)) {
        flatten(v, inside(std::to_string(*i)), out);
      }
    }
  } else if (const auto* list = std::get_if<std::shared_ptr<Values>>(&value)) {
    for (size_t i = 0; i < (*list)->size(); ++i) flatten((**list)[i], inside(std::to_string(i)), out);
  }
}

}  // namespace

std::map<std::string, at::Tensor> read_pickled_tensors(caffe2::serialize::PyTorchStreamReader& zip) {
  std::map<std::string, at::Tensor> result;
  flatten(PickleReader(zip).read(), "", result);
  return result;
}

}  // namespace dtensor
