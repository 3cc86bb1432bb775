#include "dtensor/gradients/split_backward.h"

#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dtensor::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Engine;
using torch::autograd::Node;
using NodePtr = decltype(Edge::function);  // a std::shared_ptr in older releases of LibTorch, an intrusive_ptr now

// Of the nodes that `root` leads to, whether they lead to `sink`.
std::unordered_map<const Node*, bool> which_lead_to(const Node* root, const Node* sink) {
  struct Visit {
    const Node* node;
    size_t next = 0;  // edge to follow
  };
  std::unordered_map<const Node*, bool> leads{{root, root == sink}};
  std::vector<Visit> path{{root}};
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next == visit.node->num_outputs()) {
      const bool does = leads[visit.node];
      path.pop_back();
      if (does && !path.empty()) leads[path.back().node] = true;
      continue;
    }
    const Node* next = visit.node->next_edge(visit.next++).function.get();
    if (next == nullptr) continue;
    const auto [known, is_new] = leads.emplace(next, next == sink);
    if (is_new) {
      path.push_back({next});
    } else if (known->second) {
      leads[visit.node] = true;
    }
  }
  return leads;
}

// The nodes on the way from `root` to a sink that have edges to other leaves, too, in the order of a walk from root.
std::vector<NodePtr> nodes_to_split(const NodePtr& root, const std::unordered_map<const Node*, bool>& leads) {
  std::vector<NodePtr> split, stack{root};
  std::unordered_map<const Node*, bool> seen{{root.get(), true}};
  while (!stack.empty()) {
    const NodePtr node = stack.back();
    stack.pop_back();
    bool leads_elsewhere = false;
    for (const Edge& edge : node->next_edges()) {
      if (!edge.is_valid()) continue;
      if (!leads.at(edge.function.get())) {
        leads_elsewhere = true;
      } else if (seen.emplace(edge.function.get(), true).second) {
        stack.push_back(edge.function);
      }
    }
    if (leads_elsewhere) split.push_back(node);
  }
  return split;
}

}  // namespace

at::Tensor backward_input(const at::Tensor& root, const at::Tensor& gradient, const at::Tensor& input,
                          SplitBackward& rest) {
  const Edge from = torch::autograd::impl::gradient_edge(root), to = torch::autograd::impl::gradient_edge(input);
  const at::Tensor given = gradient.defined() ? gradient : at::ones_like(root);
  const auto leads = which_lead_to(from.function.get(), to.function.get());
  if (!leads.at(from.function.get())) {
    rest = {{from}, {given}};
    return {};
  }
  const auto split = nodes_to_split(from.function, leads);
  edge_list wanted{to};
  for (const auto& node : split) {
    for (uint32_t i = 0; i < node->num_inputs(); ++i) wanted.emplace_back(node, i);
  }
  const auto gradients =
      Engine::get_default_engine().execute({from}, {given}, /*keep_graph=*/true,
                                           /*create_graph=*/false, /*accumulate_grad=*/false, wanted);
  for (const auto& node : split) {
    for (Edge& edge : node->next_edges()) {
      if (edge.is_valid() && leads.at(edge.function.get())) edge = Edge();
    }
  }
  rest = {};
  for (size_t i = 1; i < wanted.size(); ++i) {
    if (!gradients[i].defined()) continue;
    rest.roots.push_back(wanted[i]);
    rest.gradients.push_back(gradients[i]);
  }
  return gradients[0];
}

void backward_weight(SplitBackward rest) {
  if (rest.roots.empty()) return;
  Engine::get_default_engine().execute(rest.roots, rest.gradients, /*keep_graph=*/false, /*create_graph=*/false,
                                       /*accumulate_grad=*/true);
}

}  // namespace dtensor::internal
