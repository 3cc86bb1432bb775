#include "examples/serving/batch_server.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "dtensor/redistribute.h"
#include "dtensor/scopes.h"
#include "propagation/strategy_cache.h"

namespace examples {

BatchServer::BatchServer(const Llama& model, const dtensor::DeviceMesh& mesh, const ServerOptions& options)
    : model_(model),
      mesh_(mesh),
      options_(options),
      slots_(options.slots, options.capacity),
      caches_(static_cast<size_t>(model->config.layers)),
      sequences_(static_cast<size_t>(options.slots)) {
  TORCH_CHECK_VALUE(options.chunk >= 1, "chunk is ", options.chunk, ": at least 1 is expected");
}

std::vector<int64_t> BatchServer::next_ids(const std::vector<int64_t>& counts, int64_t columns) {
  torch::Tensor ids = torch::zeros({slots_.size(), columns}, torch::kLong);
  for (size_t s = 0; s < counts.size(); ++s) {
    std::copy_n(sequences_[s].pending.begin(), counts[s], ids.mutable_data_ptr<int64_t>() + s * columns);
  }
  std::optional<dtensor::MeshScope> scope;
  if (mesh_.defined()) {
    scope.emplace(mesh_);
    ids = dtensor::distribute_tensor(ids, mesh_, {}, /*source_rank=*/std::nullopt);  // every process has them
  } else {
    ids = ids.to(model_->head->weight.device());
  }
  const dtensor::GenerationStep step = slots_.step(counts, columns, ids.device());
  torch::Tensor best = model_->score_next(ids, step, caches_).argmax(-1);
  if (mesh_.defined()) best = dtensor::full_tensor(best);
  best = best.cpu();
  slots_.advance(step);
  const auto* values = best.const_data_ptr<int64_t>();
  return {values, values + best.numel()};
}

void BatchServer::one_step(const std::vector<Request>& requests, int64_t clock, std::vector<Answer>& answers) {
  const bool reads_prompt =
      std::any_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.pending.size() > 1; });
  const int64_t columns = reads_prompt ? options_.chunk : 1;
  std::vector<int64_t> counts;
  for (const Sequence& s : sequences_) counts.push_back(std::min<int64_t>(columns, s.pending.size()));
  const std::vector<int64_t> best = next_ids(counts, columns);
  ++steps_.count;
  steps_.of_chunks += reads_prompt;
  for (size_t s = 0; s < sequences_.size(); ++s) {
    Sequence& sequence = sequences_[s];
    sequence.pending.erase(sequence.pending.begin(), sequence.pending.begin() + counts[s]);
    if (sequence.request < 0 || !sequence.pending.empty()) continue;
    Answer& answer = answers[sequence.request];
    answer.ids.push_back(best[s]);
    ++steps_.tokens;
    if (static_cast<int64_t>(answer.ids.size()) < requests[sequence.request].new_tokens) {
      sequence.pending = {best[s]};
      continue;
    }
    answer.ended = clock + 1;
    slots_.leave(static_cast<int64_t>(s));
    sequence.request = -1;
  }
}

std::vector<Answer> BatchServer::serve(const std::vector<Request>& requests) {
  const torch::NoGradGuard no_grad;
  const auto misses = [&] {
    return mesh_.defined() ? static_cast<int64_t>(dtensor::strategy_cache(mesh_.world()).stats().misses) : 0;
  };
  const auto begin = std::chrono::steady_clock::now();
  std::vector<Answer> answers(requests.size());
  std::vector<int64_t> waiting(requests.size());  // by arrival
  for (size_t i = 0; i < waiting.size(); ++i) waiting[i] = static_cast<int64_t>(i);
  std::stable_sort(waiting.begin(), waiting.end(),
                   [&](int64_t a, int64_t b) { return requests[a].arrival < requests[b].arrival; });
  size_t next = 0;
  int64_t clock = 0;  // steps, also those without work; as Request::arrival
  const auto is_idle = [&] {
    return std::all_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.request < 0; });
  };
  while (next < waiting.size() || !is_idle()) {
    if (is_idle()) clock = std::max(clock, requests[waiting[next]].arrival);  // nothing to do until then
    while (next < waiting.size() && requests[waiting[next]].arrival <= clock) {
      const auto slot = slots_.join();
      if (!slot) break;
      const int64_t request = waiting[next++];
      sequences_[*slot] = {request, requests[request].prompt};
      answers[request].started = clock;
    }
    const int64_t before = misses();
    const bool both_were_seen = steps_.of_chunks >= 2 && steps_.count - steps_.of_chunks >= 2;
    one_step(requests, clock, answers);
    if (both_were_seen) steps_.late_misses += misses() - before;
    ++clock;
  }
  steps_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return answers;
}

std::vector<int64_t> generate_alone(Llama& model, const Request& request) {
  const torch::NoGradGuard no_grad;
  std::vector<int64_t> ids = request.prompt;
  for (int64_t n = 0; n < request.new_tokens; ++n) {
    const auto all = torch::tensor(ids, torch::kLong).view({1, -1}).to(model->head->weight.device());
    ids.push_back(model->forward(all).select(1, -1).argmax(-1).item<int64_t>());
  }
  return {ids.begin() + static_cast<std::ptrdiff_t>(request.prompt.size()), ids.end()};
}

}  // namespace examples
