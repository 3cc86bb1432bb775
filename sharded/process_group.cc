#include "sharded/process_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <array>

#include "comm/error_message.h"
#include "dtensor/gather_texts.h"
#include "sharded/errors.h"

namespace dtensor::sharded {
using namespace dtensor::internal;

namespace {

DeviceMesh all_ranks(const World& world) {
  TORCH_CHECK_VALUE(world.defined(), "a process group needs a world: give World::local(n), World::from_env(), ...");
  return DeviceMesh(world, {world.size()}, {"world"});
}

DeviceMesh some_ranks(const World& world, std::vector<int64_t> ranks, std::string name) {
  TORCH_CHECK_VALUE(world.defined(), "a process group needs a world: give World::local(n), World::from_env(), ...");
  TORCH_CHECK_VALUE(!ranks.empty(), "a process group needs a rank at least");
  const auto size = static_cast<int64_t>(ranks.size());
  return DeviceMesh(world, {size}, {std::move(name)}, std::move(ranks));
}

// A rank's message: a letter for its status, and its text or error.
template <typename E>
bool is_a(const std::exception& e) {
  return dynamic_cast<const E*>(&e) != nullptr;
}

template <typename E>
[[noreturn]] void raise_text(const std::string& text) {
  raise<E>(text);
}

struct Kind {
  char letter;
  bool (*is)(const std::exception&);
  void (*raise)(const std::string&);
};

template <typename E>
constexpr Kind kind(char letter) {
  return {letter, &is_a<E>, &raise_text<E>};
}

constexpr char kWell = '+';
// Derived classes first.
constexpr std::array kKinds = {kind<c10::ValueError>('V'), kind<c10::TypeError>('T'),
                               kind<c10::IndexError>('I'), kind<c10::NotImplementedError>('N'),
                               kind<AttributeError>('A'),  kind<KeyError>('K'),
                               kind<c10::Error>('R')};

std::string error_letter_and_text(const std::exception& e) {
  for (const Kind& k : kKinds) {
    if (k.is(e)) return k.letter + message_of(e);
  }
  return 'R' + message_of(e);
}

constexpr size_t kMostTexts = 8;

// Throws with the first rank's class and each rank's error, equal texts once.
void raise_errors(const ProcessGroup& group, std::string_view op, const std::vector<std::string>& rank_texts) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> texts;
  char letter = kWell;
  for (size_t i = 0; i < rank_texts.size(); ++i) {
    if (rank_texts[i].empty() || rank_texts[i][0] == kWell) continue;
    if (letter == kWell) letter = rank_texts[i][0];
    auto at = std::find_if(texts.begin(), texts.end(), [&](auto& t) { return t.first == rank_texts[i].substr(1); });
    if (at == texts.end()) at = texts.insert(texts.end(), {rank_texts[i].substr(1), {}});
    at->second.push_back(group.ranks()[i]);
  }
  if (texts.empty()) return;
  std::string all;
  for (size_t i = 0; i < std::min(texts.size(), kMostTexts); ++i) {
    const auto& [text, ranks] = texts[i];
    all += i == 0 ? "" : "; ";
    if (group.size() > 1) all += (ranks.size() == 1 ? "rank " : "ranks ") + ranks_text(ranks) + ": ";
    all += text;
  }
  if (texts.size() > kMostTexts) all += c10::str("; and ", texts.size() - kMostTexts, " other errors");
  for (const Kind& k : kKinds) {
    if (k.letter == letter) k.raise(c10::str("[", op, "] ", all));
  }
  TORCH_CHECK(false, "[", op, "] ", all);
}

}  // namespace

ProcessGroup::ProcessGroup(const World& world) : mesh_(all_ranks(world)) {}

ProcessGroup::ProcessGroup(const World& world, std::vector<int64_t> ranks, std::string name)
    : mesh_(some_ranks(world, std::move(ranks), std::move(name))) {}

ProcessGroup::ProcessGroup(const DeviceMesh& mesh) : mesh_(mesh) {
  TORCH_CHECK_VALUE(mesh.defined() && mesh.ndim() == 1, "a process group is a mesh of one dim, not ",
                    mesh.defined() ? mesh.to_string() : "none", ": flatten() it, or take one of its dims");
  TORCH_CHECK_VALUE(mesh.num_copies() == 1, "a process group of ", mesh.to_string(), ", a slice that stands for ",
                    mesh.num_copies(), " groups: say the ranks of one of them");
}

int64_t ProcessGroup::group_rank(int64_t rank) const {
  const auto at = std::find(ranks().begin(), ranks().end(), rank);
  return at == ranks().end() ? -1 : at - ranks().begin();
}

std::string ProcessGroup::to_string() const {
  if (!defined()) return "no process group";
  return c10::str("ProcessGroup(", mesh_.names()[0], ", ranks ", ranks_text(ranks()), " of ", world().name(), ")");
}

std::vector<std::string> exchange_texts(const ProcessGroup& group, std::string_view op,
                                        const std::function<std::string(int64_t rank)>& text_of) {
  if (group.owned_ranks().empty()) return std::vector<std::string>(group.size());
  const auto say = [&](int64_t rank) {
    try {
      return kWell + text_of(rank);
    } catch (const std::exception& e) {
      return error_letter_and_text(e);
    }
  };
  std::vector<std::string> rank_texts(group.size());
  if (group.world().kind() == World::Kind::kProcesses && group.size() > 1) {
    TORCH_INTERNAL_ASSERT(group.owned_ranks().size() == 1);
    rank_texts = gather_texts(group.mesh(), say(group.owned_ranks()[0]), op);
  } else {
    for (int64_t rank : group.owned_ranks()) rank_texts[group.group_rank(rank)] = say(rank);
  }
  raise_errors(group, op, rank_texts);
  for (std::string& text : rank_texts) text.erase(0, 1);
  return rank_texts;
}

void check_on_all_ranks(const ProcessGroup& group, std::string_view op,
                        const std::function<void(int64_t rank)>& check) {
  exchange_texts(group, op, [&](int64_t rank) {
    check(rank);
    return std::string();
  });
}

}  // namespace dtensor::sharded
