// Whether an operator's rule is right, and says all there is: tried out, on tiny tensors.
//
//   OpSample sample{"mylib::squared_distances", {torch::rand({5, 3}), torch::rand({4, 3})}};
//   RuleReport report = verify_rule(sample);
//   std::cout << report;          // what is wrong, with layouts
//   assert(report.is_right());
//
// On small meshes of this process, whose sizes do not divide the tensors' on purpose:
//  * the operator on inputs in many layouts (uneven and empty parts, every kind of Partial with values of both signs,
//    parts that are not contiguous) against the same on plain tensors, gradients too;
//  * each strategy that the rule offers, on inputs that lie so already;
//  * all layouts of the inputs without Partials, by running the operator on the parts alone: where these make up the
//    result, of other values too, and the engine communicates all the same, the rule lacks a strategy.
// Where sums are infinite or nan by parts and plain tensors give infinity or nan, either counts as right, as
// docs/rules.md has it.
// Operators with a handler in the place of a rule are tried in layouts only. `//tools:verify_rules` does so for those
// of ATen.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace dtensor {

// One call. Tensors are plain, on the CPU, best of float64; arguments in schema order, those left out at the end take
// their defaults.
struct OpSample {
  std::string op;  // "aten::add.Tensor", "mylib::squared_distances"
  std::vector<c10::IValue> args;
};

struct VerifyRuleOptions {
  std::vector<std::vector<int64_t>> meshes = {{2}, {3}, {2, 2}};  // shapes
  int64_t most_layouts = 48;                                      // on each; of more, so many at random
  uint64_t seed = 0;
  bool gradients = true;
  bool strategies = true;  // try what is offered one by one
  // Look for what is not. That runs the operator on parts that need not fit each other: a kernel that does not check
  // its arguments may end the process.
  bool missing = true;
  double tolerance = 1e-8;  // of float64, relative to the largest element; wider of narrower dtypes
};

struct RuleFinding {
  enum class Kind {
    kError,            // an error where plain tensors give none, and no refusal that says so by its class
    kWrongValue,       // another value, shape, dtype or gradient than of plain tensors
    kWrongStrategy,    // the same, of a strategy that the rule offers
    kMissingStrategy,  // communication where none is needed
  };
  Kind kind;
  std::string text;  // operator, mesh, layouts, what was found
};

struct RuleReport {
  std::vector<RuleFinding> findings;
  int64_t layouts = 0;     // that were tried
  int64_t refused = 0;     // of them, by NotImplementedError, or since what is written to cannot change its layout
  int64_t strategies = 0;  // that were tried one by one
  // Layouts with split inputs on two ranks for which nothing was communicated, and what came out: "S(0), R -> S(0)".
  // Without a wrong result or gradient; sorted.
  std::vector<std::string> local;
  bool has_gradients = false;  // some input has one

  bool is_right() const;  // no findings but missing strategies
  std::string to_string() const;
};

// Errors (ValueError): no such operator; arguments that its schema or plain LibTorch does not take; an operator that
// has neither rule nor handler and is not composed of others; tensors that are distributed.
RuleReport verify_rule(const OpSample& sample, const VerifyRuleOptions& options = {});

const char* to_string(RuleFinding::Kind kind);
std::ostream& operator<<(std::ostream& os, const RuleReport& report);

}  // namespace dtensor
