#include "processes/job/job_board.h"

#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "processes/job/host_process.h"

namespace dtensor::internal {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kStoreTimeout{2000};  // of single questions to the store

std::string to_text(const RankStatus& s) {
  const Json json = {{"active", s.active}, {"what", s.what}, {"group", s.group}, {"begun", s.begun}, {"last", s.last}};
  return json.dump();
}

RankStatus status_from(const std::string& text) {
  const Json json = Json::parse(text);
  RankStatus s;
  s.active = json.at("active").get<bool>();
  s.what = json.at("what").get<std::string>();
  s.group = json.at("group").get<std::string>();
  json.at("begun").get_to(s.begun);
  json.at("last").get_to(s.last);
  return s;
}

std::string ended_key(const std::string& group, int64_t calls) { return absl::StrCat("ended/", group, "/", calls); }

}  // namespace

void post_place(c10d::Store& store, int64_t rank) {
  const Json place = {{"host", host_name()},
                      {"pid", ::getpid()},
                      {"pid_namespace", pid_namespace()},
                      {"start", process_start(::getpid())}};
  store.set(absl::StrCat("place/", rank), place.dump());
}

std::string agree_on_id(c10d::Store& store) {
  std::random_device random;
  std::string mine;
  for (int i = 0; i < 2; ++i) absl::StrAppend(&mine, absl::Hex(random(), absl::kZeroPad8));
  const std::vector<uint8_t> first = store.compareSet("id", std::vector<uint8_t>(), {mine.begin(), mine.end()});
  return {first.begin(), first.end()};
}

JobBoard::JobBoard(const BoundedStore& store, int64_t rank) : rank_(rank), store_(store.under("")) {
  store_->setTimeout(std::min(kStoreTimeout, store.getTimeout()));
}

std::optional<std::string> JobBoard::read(const std::string& key) {
  if (!store_->check({key})) return std::nullopt;
  return store_->get_to_str(key);
}

std::optional<JobBoard::Place> JobBoard::place(int64_t rank) {
  std::lock_guard lock(mutex_);
  if (const auto it = places_.find(rank); it != places_.end()) return it->second;
  const auto text = read(absl::StrCat("place/", rank));
  if (!text) return std::nullopt;
  const Json json = Json::parse(*text);
  return places_[rank] = {json.at("host").get<std::string>(), json.at("pid").get<int64_t>(),
                          json.at("pid_namespace").get<std::string>(), json.at("start").get<std::string>()};
}

JobBoard::Setup JobBoard::first_setup(const Setup& mine) {
  std::lock_guard lock(mutex_);
  const Json own = {{"rank", mine.rank}, {"size", mine.size}, {"debug", mine.debug}, {"version", mine.version}};
  const Json first = Json::parse(store_->compareSet("setup", std::string(), own.dump()));
  return {first.at("rank").get<int64_t>(), first.at("size").get<int64_t>(), first.at("debug").get<std::string>(),
          first.at("version").get<std::string>()};
}

std::string JobBoard::post_failure(const std::string& text) {
  std::lock_guard lock(mutex_);
  if (store_->add("failed/claim", 1) == 1) {
    store_->set("failed/record", text);
    return text;
  }
  return read("failed/record").value_or(text);
}

std::optional<std::string> JobBoard::failure() {
  std::lock_guard lock(mutex_);
  return read("failed/record");
}

int64_t JobBoard::ask() {
  std::lock_guard lock(mutex_);
  return store_->add("probe", 1);
}

int64_t JobBoard::last_question() {
  std::lock_guard lock(mutex_);
  const auto text = read("probe");
  return text ? std::stoll(*text) : 0;
}

void JobBoard::answer(int64_t question, const RankStatus& mine) {
  std::lock_guard lock(mutex_);
  store_->set(absl::StrCat("status/", question, "/", rank_), to_text(mine));
}

std::optional<RankStatus> JobBoard::answer_of(int64_t question, int64_t rank) {
  std::lock_guard lock(mutex_);
  const auto text = read(absl::StrCat("status/", question, "/", rank));
  if (!text) return std::nullopt;
  return status_from(*text);
}

void JobBoard::post_left(const RankStatus& mine) {
  std::lock_guard lock(mutex_);
  store_->set(absl::StrCat("left/", rank_), to_text(mine));
}

void JobBoard::post_ended(const std::string& group, int64_t calls) {
  std::lock_guard lock(mutex_);
  store_->add(ended_key(group, calls), 1);
}

int64_t JobBoard::ended(const std::string& group, int64_t calls) {
  std::lock_guard lock(mutex_);
  const auto text = read(ended_key(group, calls));
  return text ? std::stoll(*text) : 0;
}

std::optional<RankStatus> JobBoard::left(int64_t rank) {
  std::lock_guard lock(mutex_);
  const auto text = read(absl::StrCat("left/", rank));
  if (!text) return std::nullopt;
  return status_from(*text);
}

}  // namespace dtensor::internal
