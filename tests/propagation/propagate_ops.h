// Operators, rules and specs for tests of propagation, independent of the library's rules.
#pragma once

#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

#include "propagation/decision.h"
#include "propagation/op_call.h"

namespace dtensor::propagate_ops {

// Adds the rules of propagate_test:: operators, once.
void add_rules();

// A mesh of an abstract world; the same one for each shape.
DeviceMesh mesh_of(std::vector<int64_t> shape);

SpecPtr spec(std::vector<int64_t> mesh, Shape sizes, const std::string& layout, c10::ScalarType dtype = at::kFloat);

// A call of propagate_test::`op`, whose rules are there.
OpCall make(const std::string& op, const std::vector<SpecPtr>& specs, std::vector<c10::IValue> args = {});

// "S(0), R -> S(0); 1: 48 B": the layouts of the computation, and the bytes of each input's redistribution ("local" if
// 0).
std::string decision(const Decision& plan);

}  // namespace dtensor::propagate_ops
