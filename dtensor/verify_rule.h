// Tests on tiny tensors whether an operator's rule is correct and complete.
//
//   OpSample sample{"mylib::squared_distances", {torch::rand({5, 3}), torch::rand({4, 3})}};
//   RuleReport report = verify_rule(sample);
//   std::cout << report;          // what is wrong, with layouts
//   assert(report.is_right());
//
// On small meshes of this process, whose sizes do not divide the tensors' on purpose:
//  * runs the operator on inputs in many layouts (uneven and empty parts, every kind of Partial with values of both
//    signs, parts that are not contiguous) against the same on plain tensors, gradients too;
//  * runs each strategy that the rule offers, on inputs already in its layouts;
//  * tries all layouts of the inputs without Partials on the parts alone: where the local results make up the result,
//    for other values too, but the engine communicates, the rule lacks a strategy.
// Where sums of parts are infinite or nan and plain tensors give infinity or nan, either counts as correct
// (docs/rules.md).
// For operators with a handler instead of a rule, only layouts are tried. `//tools:verify_rules` tests those of ATen.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace dtensor {

// One call. Tensors are plain, on one device, preferably float64; arguments in schema order, omitted ones at the end
// take their defaults.
struct OpSample {
  std::string op;  // "aten::add.Tensor", "mylib::squared_distances"
  std::vector<c10::IValue> args;
};

struct VerifyRuleOptions {
  std::vector<std::vector<int64_t>> meshes = {{2}, {3}, {2, 2}};  // shapes
  int64_t most_layouts = 48;                                      // per mesh; if there are more, this many at random
  uint64_t seed = 0;
  bool gradients = true;
  bool strategies = true;  // try the offered strategies one by one
  // Look for missing strategies. That runs the operator on parts that need not fit each other: a kernel that does not
  // check its arguments may end the process, or make its GPU unusable for it.
  bool missing = true;
  double tolerance = 1e-8;  // for float64, relative to the largest element; wider for narrower dtypes
};

struct RuleFinding {
  enum class Kind {
    kError,            // an error where plain tensors give none, other than NotImplementedError
    kWrongValue,       // value, shape, dtype or gradient differs from that of plain tensors
    kWrongStrategy,    // the same, of a strategy that the rule offers
    kMissingStrategy,  // communication where none is needed
  };
  Kind kind;
  std::string text;  // operator, mesh, layouts, finding
};

struct RuleReport {
  std::vector<RuleFinding> findings;
  int64_t layouts = 0;     // that were tried
  int64_t refused = 0;     // of them, by NotImplementedError, or since a written argument cannot change its layout
  int64_t strategies = 0;  // that were tried one by one
  // Layouts with split inputs on two ranks that needed no communication, with the result's: "S(0), R -> S(0)". Without
  // a wrong result or gradient; sorted.
  std::vector<std::string> local;
  bool has_gradients = false;  // some input has one

  bool is_right() const;  // no findings except missing strategies
  std::string to_string() const;
};

// Errors (ValueError): no such operator; arguments that its schema or plain LibTorch rejects; an operator that has
// neither rule nor handler and is not composite; tensors that are distributed.
RuleReport verify_rule(const OpSample& sample, const VerifyRuleOptions& options = {});

const char* to_string(RuleFinding::Kind kind);
std::ostream& operator<<(std::ostream& os, const RuleReport& report);

}  // namespace dtensor
