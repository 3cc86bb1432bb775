#include "tools/flight/attach.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "processes/job/host_process.h"
#include "processes/job/status_text.h"

namespace dtensor::tools {
using namespace internal;

namespace {

using Clock = std::chrono::steady_clock;

// The addresses at which a process of this network namespace listens.
std::vector<RankAddress> listening() {
  std::ifstream sockets("/proc/net/unix");
  std::set<std::string> seen;  // what was accepted has the name of the socket that listened
  std::vector<RankAddress> found;
  for (std::string line; std::getline(sockets, line);) {
    const size_t at = line.find('@');
    if (at == std::string::npos || !seen.insert(line.substr(at + 1)).second) continue;
    const auto address = parse_socket_name(line.substr(at + 1));
    if (address) found.push_back(*address);
  }
  return found;
}

// A rank that is being asked.
struct Question {
  LiveRank rank;
  int fd = -1;
  std::string text;
};

// Null if it is not there any more, or of another user. Does not wait: where the process is stopped, the system takes
// the connection for it, and still provides its owner.
std::optional<Question> ask(const RankAddress& address) {
  const std::string name = socket_name(address);
  sockaddr_un to = {};
  if (name.size() + 1 > sizeof to.sun_path) return std::nullopt;
  to.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), to.sun_path + 1);
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  Question question;
  question.rank.address = address;
  question.rank.pid = address.pid;
  question.fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (question.fd < 0) return std::nullopt;
  ucred other = {};
  socklen_t length = sizeof other;
  const int connected = ::connect(question.fd, reinterpret_cast<const sockaddr*>(&to), size);
  const bool busy = connected != 0 && errno == EAGAIN;  // many ask already
  if (connected == 0 && ::getsockopt(question.fd, SOL_SOCKET, SO_PEERCRED, &other, &length) == 0 &&
      other.uid == ::geteuid()) {
    if (other.pid > 0) question.rank.pid = other.pid;
    // Else the rank is gone, and a process that it forked keeps the name.
    if (process_start(question.rank.pid) == address.start) return question;
  }
  ::close(question.fd);
  question.fd = -1;
  return busy ? std::optional<Question>(question) : std::nullopt;
}

// False: that was all.
bool read_more(Question& question) {
  char buffer[1 << 16];
  for (;;) {
    const ssize_t n = ::read(question.fd, buffer, sizeof buffer);
    if (n > 0) {
      question.text.append(buffer, static_cast<size_t>(n));
    } else if (n == 0) {
      return false;
    } else if (errno != EINTR) {
      return errno == EAGAIN;
    }
  }
}

void read_answers(std::vector<Question>& questions, std::chrono::milliseconds patience) {
  const auto until = Clock::now() + patience;
  for (;;) {
    std::vector<pollfd> fds;
    std::vector<Question*> open;
    for (Question& question : questions) {
      if (question.fd < 0) continue;
      fds.push_back({question.fd, POLLIN, 0});
      open.push_back(&question);
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (fds.empty() || left <= 0 || (::poll(fds.data(), fds.size(), static_cast<int>(left)) < 0 && errno != EINTR)) {
      break;
    }
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0 || read_more(*open[i])) continue;
      ::close(std::exchange(open[i]->fd, -1));
    }
  }
  for (Question& question : questions) {
    if (question.fd >= 0) ::close(std::exchange(question.fd, -1));
  }
}

// "VmRSS:   1234 kB" of /proc/PID/status; -1 if there is none.
int64_t resident_bytes(int64_t pid) {
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string line; std::getline(status, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kilobytes = 0;
    if (words.size() > 1 && words[0] == "VmRSS:" && absl::SimpleAtoi(words[1], &kilobytes)) return kilobytes * 1024;
  }
  return -1;
}

// Whether process `pid` is `ancestor`, or was started by it.
bool descends(int64_t pid, int64_t ancestor) {
  for (int depth = 0; depth < 1000 && pid > 0; ++depth) {
    if (pid == ancestor) return true;
    pid = parent_process(pid);
  }
  return false;
}

// Stores the answer of rank `question`.
void take_answer(const Question& question, LiveRank& rank) {
  absl::string_view text = question.text;
  if (text.empty()) return;
  try {
    if (!absl::ConsumeSuffix(&text, kStatusEnd)) throw UsageError("it is cut off");
    rank.answer = parse_answer(absl::StrCat("rank ", rank.address.rank, ", process ", rank.pid), std::string(text));
  } catch (const std::exception& e) {
    rank.unreadable = e.what();
  }
}

std::string processes_text(const LiveJob& job) {
  return absl::StrCat(
      "a job of ", job.size, job.size == 1 ? " rank" : " ranks", " in ",
      job.ranks.size() == 1 ? "process " : "processes ",
      absl::StrJoin(job.ranks, ",", [](std::string* out, const LiveRank& rank) { absl::StrAppend(out, rank.pid); }));
}

}  // namespace

LiveAnswer parse_answer(const std::string& from, const std::string& text) {
  const size_t end = text.find('\n');
  LiveAnswer answer;
  try {
    const auto json = nlohmann::json::parse(text.substr(0, end));
    answer.waits_in = json.at("waits_in").get<std::string>();
    answer.waited = std::chrono::milliseconds(json.at("waited_ms").get<int64_t>());
    json.at("last").get_to(answer.last);
    answer.failure = json.at("failure").get<std::string>();
  } catch (const nlohmann::json::exception& e) {
    throw UsageError(absl::StrCat(from, ": its answer cannot be read, perhaps of another version: ", e.what()));
  }
  answer.dump = parse_flight_dump(from, end == std::string::npos ? "" : text.substr(end + 1));
  return answer;
}

std::vector<LiveJob> attach(const std::string& job, std::chrono::milliseconds patience) {
  int64_t pid = 0;
  if (!absl::SimpleAtoi(job, &pid) || pid < 1) {
    throw UsageError(absl::StrCat("--attach ", job, ": give the number of a process, of the launcher or of any rank"));
  }
  std::vector<Question> questions;
  for (const RankAddress& address : listening()) {
    if (auto question = ask(address)) questions.push_back(*std::move(question));
  }
  std::set<std::string> wanted;
  for (const Question& question : questions) {
    if (descends(question.rank.pid, pid)) wanted.insert(question.rank.address.job);
  }
  for (Question& question : questions) {
    if (wanted.count(question.rank.address.job) == 0 && question.fd >= 0) ::close(std::exchange(question.fd, -1));
  }
  read_answers(questions, patience);
  std::map<std::string, LiveJob> jobs;
  for (Question& question : questions) {
    LiveRank& rank = question.rank;
    rank.state = process_state(rank.pid);
    rank.resident_bytes = resident_bytes(rank.pid);
    take_answer(question, rank);
    LiveJob& all = jobs[rank.address.job];
    all.id = rank.address.job;
    all.size = rank.address.size;
    all.ranks.push_back(std::move(rank));
  }
  std::vector<LiveJob> found;
  std::vector<std::string> others;
  for (auto& [id, live] : jobs) {
    std::sort(live.ranks.begin(), live.ranks.end(),
              [](const LiveRank& a, const LiveRank& b) { return a.address.rank < b.address.rank; });
    others.push_back(processes_text(live));
    if (wanted.count(id) > 0) found.push_back(std::move(live));
  }
  if (!found.empty()) return found;
  throw UsageError(absl::StrCat(
      "--attach ", job, ": no rank of a job is in this process or below it; ",
      others.empty() ? "this user has no running job here" : "this user has here: ", absl::StrJoin(others, "; ")));
}

}  // namespace dtensor::tools
