// Pickles, whatever they ask for: calls and values from outside give back what they got.
#include "checkpoint/formats/pickle_machine.h"
#include "tests/readers/reader_fuzz.h"

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::testing;

namespace {

size_t walk(const PickleValue& value, WalkLimit& limit) {
  const WalkLimit::Step step(limit);
  size_t n = 1;
  if (const auto* text = std::get_if<std::string_view>(&value)) {
    touch(text->data(), text->size());
  } else if (const auto* global = std::get_if<PickleGlobal>(&value)) {
    must(global->to_string().size() == global->module.size() + 1 + global->name.size(), "a global has its two names");
  } else if (const auto* list = std::get_if<PickleList*>(&value)) {
    for (const PickleValue& v : (*list)->items) n += walk(v, limit);
  } else if (const auto* dict = std::get_if<PickleDict*>(&value)) {
    for (const auto& [k, v] : (*dict)->items) n += walk(k, limit) + walk(v, limit);
  } else if (const auto* object = std::get_if<PickleObject*>(&value)) {
    n += walk((*object)->type, limit) + walk((*object)->state, limit);
  }
  return n;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Pickle::Hooks hooks{[](const PickleValue& id) { return id; },
                            [](Pickle& pickle, const std::string& function, const PickleList& arguments) {
                              if (function == "collections.OrderedDict") return PickleValue(pickle.new_dict());
                              TORCH_CHECK(!arguments.items.empty(), "a call without arguments");
                              return arguments.items[0];
                            },
                            [](const std::string& type) { return type.rfind("__torch__.", 0) == 0; }};
  read_or_refuse([&] {
    const Pickle pickle(text_of_input(data, size), hooks);
    WalkLimit limit(pickle);
    must(walk(pickle.root(), limit) <= WalkLimit::kMostSteps, "a walk ends");
    return true;
  });
  return 0;
}
