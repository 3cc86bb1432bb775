// Reports a rank's activity at the socket of its address (rank_address.h), to tools/flight --attach. On a thread of its
// own, so that a rank answers even if it is stuck in a collective, in a kernel, or anywhere else. Only processes of the
// same user get an answer.
//
//   StatusServer server({"4f2a", /*rank=*/0, /*size=*/4, ::getpid()}, [] { return "I am well\n"; });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "processes/job/rank_address.h"

namespace dtensor::internal {

class StatusServer {
 public:
  // A client gets the result of `answer`, and the end of the stream; nothing is read. A client that takes longer than a
  // second to read gets only a part, as clients are answered one after the other. `answer` is called on the thread, and
  // must not wait for long. Does not throw: without a socket or thread, there are no answers.
  StatusServer(const RankAddress& address, std::function<std::string()> answer) noexcept;
  // Ends the thread; waits for an `answer` that is being made. In a fork's child it does nothing.
  ~StatusServer();
  StatusServer(const StatusServer&) = delete;
  StatusServer& operator=(const StatusServer&) = delete;

 private:
  void serve();
  void send_answer(int to);
  bool wait_for(int fd, short event, int timeout_ms) const;  // false: too late, or this ends

  const std::function<std::string()> answer_;
  const int process_;
  int listens_ = -1;  // the socket
  int stops_ = -1;    // readable when this ends
  std::unique_ptr<std::thread> thread_;
};

}  // namespace dtensor::internal
