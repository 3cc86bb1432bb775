// Generates the most likely tokens for many requests at once: one batch with a slot per sequence, in which requests
// start as soon as there is room, beside others that go on. A step has one of two shapes: one token per slot, or
// `chunk` columns if a prompt is being read, a part of it at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "dtensor/kv_cache.h"
#include "dtensor/sequence_slots.h"
#include "examples/models/llama.h"
#include "examples/serving/requests.h"
#include "mesh/device_mesh.h"

namespace examples {

struct ServerOptions {
  int64_t slots = 4;
  int64_t capacity = 64;  // tokens of a sequence, its prompt among them
  int64_t chunk = 8;      // of a prompt, in one step
};

struct Answer {
  std::vector<int64_t> ids;
  int64_t started = 0, ended = 0;  // by the clock of Request::arrival, which counts idle steps, too
};

class BatchServer {
 public:
  // `mesh`: where the model is distributed; undefined: the model is plain.
  BatchServer(const Llama& model, const dtensor::DeviceMesh& mesh, const ServerOptions& options);

  // Serves all of them, and returns their answers in the order of `requests`. In a job all processes call it alike.
  std::vector<Answer> serve(const std::vector<Request>& requests);

  // Of serve():
  struct Steps {
    int64_t count = 0, of_chunks = 0, tokens = 0;
    double seconds = 0;
    int64_t late_misses = 0;  // of the strategy cache, after two steps of each shape
  };
  const Steps& steps() const { return steps_; }

 private:
  struct Sequence {
    int64_t request = -1;          // -1: the slot is free
    std::vector<int64_t> pending;  // ids that the model has not seen
  };
  // The best next id of every slot, after `counts` of its pending ids.
  std::vector<int64_t> next_ids(const std::vector<int64_t>& counts, int64_t columns);
  void one_step(const std::vector<Request>& requests, int64_t clock, std::vector<Answer>& answers);

  Llama model_;
  dtensor::DeviceMesh mesh_;
  ServerOptions options_;
  dtensor::SequenceSlots slots_;
  std::vector<dtensor::KVCache> caches_;  // one per layer
  std::vector<Sequence> sequences_;       // one per slot
  Steps steps_;
};

// The same for one request by itself, without a cache: all tokens are computed again for each new one.
std::vector<int64_t> generate_alone(Llama& model, const Request& request);

}  // namespace examples
