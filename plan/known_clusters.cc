#include "plan/known_clusters.h"

#include <c10/util/Exception.h>

namespace dtensor {
namespace {

constexpr const char* kEstimated =
    "Estimates, not measured: large products under the power limit, long copies, collectives of many MiB. Measure with "
    "calibrate where there is the machine.";
constexpr int64_t kGigabyte = 1000000000;

// Two sheets: that of the GPU, and that of the node for its network links of 400 Gb/s, one for each GPU.
Cluster eight_gpus(const char* name, const char* sheets) {
  Cluster c;
  c.name = name;
  c.source = std::string(sheets) +
             " Products are dense, not sparse ones. Latencies are not published: those of the built-in cost model.";
  c.ranks_per_node = 8;
  c.within_node = {.latency = 6.6e-6, .hop_latency = 0.6e-6};
  c.between_nodes = {.latency = 15e-6, .hop_latency = 2e-6, .bandwidth = 50e9};
  c.efficiency = {.products = 0.7, .memory = 0.85, .links = 0.8, .reason = kEstimated};
  return c;
}

Cluster a100() {
  Cluster c = eight_gpus("a100x8",
                         "NVIDIA A100 Tensor Core GPU data sheet, A100 80GB SXM; NVIDIA DGX A100 data sheet, whose "
                         "network links have 200 Gb/s.");
  c.memory_bytes = 80 * kGigabyte;
  c.memory_bandwidth = 2.039e12;
  c.flops_by_dtype = {
      {at::kDouble, 19.5e12}, {at::kFloat, 19.5e12}, {at::kHalf, 312e12}, {at::kBFloat16, 312e12}, {at::kChar, 624e12}};
  c.tf32_flops = 156e12;
  c.within_node.bandwidth = 300e9;  // NVLink, 600 GB/s in both directions
  c.between_nodes.bandwidth = 25e9;
  return c;
}

Cluster hopper(const char* name, const char* sheets) {
  Cluster c = eight_gpus(name, sheets);
  c.flops_by_dtype = {{at::kDouble, 67e12},         {at::kFloat, 67e12},    {at::kHalf, 989.4e12},
                      {at::kBFloat16, 989.4e12},    {at::kChar, 1978.9e12}, {at::kFloat8_e4m3fn, 1978.9e12},
                      {at::kFloat8_e5m2, 1978.9e12}};
  c.tf32_flops = 494.7e12;
  c.within_node.bandwidth = 450e9;  // NVLink, 900 GB/s in both directions
  return c;
}

Cluster h100() {
  Cluster c = hopper("h100x8", "NVIDIA H100 Tensor Core GPU data sheet, H100 SXM; NVIDIA DGX H100 data sheet.");
  c.memory_bytes = 80 * kGigabyte;
  c.memory_bandwidth = 3.35e12;
  return c;
}

Cluster h200() {
  Cluster c = hopper("h200x8", "NVIDIA H200 Tensor Core GPU data sheet, H200 SXM; NVIDIA DGX H200 data sheet.");
  c.memory_bytes = 141 * kGigabyte;
  c.memory_bandwidth = 4.8e12;
  return c;
}

Cluster b200() {
  Cluster c = eight_gpus("b200x8", "NVIDIA Blackwell data sheet, HGX B200; NVIDIA DGX B200 data sheet.");
  c.memory_bytes = 180 * kGigabyte;
  c.memory_bandwidth = 7.7e12;
  c.flops_by_dtype = {{at::kDouble, 37e12},      {at::kFloat, 75e12}, {at::kHalf, 2.25e15},
                      {at::kBFloat16, 2.25e15},  {at::kChar, 4.5e15}, {at::kFloat8_e4m3fn, 4.5e15},
                      {at::kFloat8_e5m2, 4.5e15}};
  c.tf32_flops = 1.1e15;
  c.within_node.bandwidth = 900e9;  // NVLink, 1.8 TB/s in both directions
  return c;
}

Cluster mi300x() {
  Cluster c =
      eight_gpus("mi300xx8",
                 "AMD Instinct MI300X Accelerator data sheet, matrix figures; AMD Instinct MI300X Platform data "
                 "sheet. Network links of 400 Gb/s are an assumption.");
  c.memory_bytes = 192 * kGigabyte;
  c.memory_bandwidth = 5.3e12;
  c.flops_by_dtype = {{at::kDouble, 163.4e12},          {at::kFloat, 163.4e12}, {at::kHalf, 1307.4e12},
                      {at::kBFloat16, 1307.4e12},       {at::kChar, 2614.9e12}, {at::kFloat8_e4m3fnuz, 2614.9e12},
                      {at::kFloat8_e5m2fnuz, 2614.9e12}};
  c.tf32_flops = 653.7e12;
  c.within_node.bandwidth = 448e9;  // a link to each of 7 others, of 128 GB/s in both directions
  c.efficiency.products = 0.5;
  return c;
}

// FLOP/s are 96 cores by 2.4 GHz by 16 a cycle in float64, 32 in float32 and 64 in bfloat16.
Cluster epyc() {
  Cluster c;
  c.name = "epyc9654x2";
  c.source =
      "AMD EPYC 9654 data sheet: 96 cores, base clock, 12 channels of DDR5-4800. Assumptions: 384 GB of memory and a "
      "network link of 200 Gb/s for each socket, three xGMI links of 64 GB/s between the sockets. Latencies are "
      "estimates.";
  c.ranks_per_node = 2;
  c.memory_bytes = 384 * kGigabyte;
  c.memory_bandwidth = 460.8e9;
  c.flops_by_dtype = {{at::kDouble, 3.686e12}, {at::kFloat, 7.373e12}, {at::kBFloat16, 14.746e12}};
  c.within_node = {.latency = 5e-6, .hop_latency = 1e-6, .bandwidth = 192e9};
  c.between_nodes = {.latency = 15e-6, .hop_latency = 2e-6, .bandwidth = 25e9};
  c.efficiency = {.products = 0.7, .memory = 0.8, .links = 0.7, .reason = kEstimated};
  return c;
}

std::vector<Cluster> known_clusters() { return {a100(), h100(), h200(), b200(), mi300x(), epyc()}; }

}  // namespace

std::vector<std::string> cluster_names() {
  std::vector<std::string> names;
  for (const Cluster& known : known_clusters()) names.push_back(known.name);
  return names;
}

Cluster cluster(const std::string& name) {
  for (const Cluster& known : known_clusters()) {
    if (known.name == name) return known;
  }
  TORCH_CHECK_VALUE(false, "[cluster] no cluster `", name, "`; known are ", c10::Join(", ", cluster_names()),
                    "; load_cluster() reads a file");
}

}  // namespace dtensor
