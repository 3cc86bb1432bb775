// The table of transitions in docs/redistribution.md: what the planner does between usual layouts, and what that costs
// as formulas. It plans every row for many sizes of mesh and tensor, and looks for the shortest formula that is right
// for all.
//
//   ./bazelw run //tools:transition_table              # prints it
//   ./bazelw run //tools:transition_table -- --write   # puts it into the page
//
// The tensors are large, so that bytes decide rather than latencies. Where the steps depend on the sizes of the mesh,
// each way has a line. A line for which no formula is found is an error.

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "placement/parse_placements.h"
#include "plan/redistribute_planner.h"
#include "tools/flags.h"
#include "tools/tables/page_table.h"

namespace {

using namespace dtensor;
using namespace dtensor::internal;
using namespace dtensor::tools;

// On one mesh dim of A ranks (printed as W), on two of A and B, or from A ranks to B others.
struct Row {
  enum Kind { kOneDim, kTwoDims, kTransfer } kind = kOneDim;
  std::string from, to;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all = [] {
    std::vector<Row> list;
    const char* const one[] = {"R", "S(0)", "S(1)", "P"};
    for (const char* from : one) {
      for (const char* to : one) {
        if (std::string(from) != to) list.push_back({Row::kOneDim, from, to});
      }
    }
    for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{{"S(0)S(0)", "S(0)R"},
                                                                                             {"S(0)S(0)", "RS(0)"},
                                                                                             {"S(0)S(0)", "RR"},
                                                                                             {"S(0)R", "RS(0)"},
                                                                                             {"S(0)R", "S(0)S(0)"},
                                                                                             {"RS(0)", "S(0)S(0)"},
                                                                                             {"S(0)S(1)", "RR"},
                                                                                             {"S(0)S(1)", "S(1)S(0)"},
                                                                                             {"S(0)S(1)", "S(0)S(0)"},
                                                                                             {"S(0)R", "RS(1)"},
                                                                                             {"PP", "RR"},
                                                                                             {"PP", "S(0)S(0)"},
                                                                                             {"PP", "S(0)R"},
                                                                                             {"PS(0)", "RS(0)"},
                                                                                             {"PS(0)", "S(0)R"},
                                                                                             {"PS(0)", "S(0)S(0)"},
                                                                                             {"PS(0)", "S(1)S(0)"},
                                                                                             {"PS(0)", "RR"}}) {
      list.push_back({Row::kTwoDims, from, to});
    }
    for (const auto& [from, to] : std::initializer_list<std::pair<const char*, const char*>>{
             {"S(0)", "S(0)"}, {"S(0)", "S(1)"}, {"S(0)", "R"}, {"R", "S(0)"}, {"P", "S(0)"}}) {
      list.push_back({Row::kTransfer, from, to});
    }
    return list;
  }();
  return all;
}

struct Sizes {
  int64_t n = 0, a = 1, b = 1;  // bytes of the tensor; ranks
};

// The plan at one point.
struct Point {
  Sizes sizes;
  std::string steps;
  int64_t bytes = 0, peak = 0;
  std::vector<int64_t> step_peaks;
};

// c N (A-1)^.. / A^.. B^..
struct Term {
  std::string text;
  std::function<double(const Sizes&)> value;
};

// "A²B", "" for 1.
std::string product(int a, int b) {
  const auto power = [](const char* name, int n) {
    return n == 0 ? "" : n == 1 ? std::string(name) : absl::StrCat(name, "²");
  };
  return power("A", a) + power("B", b);
}

// `plain`: N over powers of A and B only. Else without the factors that have one of `letters`.
std::vector<Term> terms(bool two, bool plain, const std::string& letters = "") {
  struct Factor {
    const char* text;
    double (*value)(double a, double b);
    bool two;
  };
  static const Factor factors[] = {
      {"", [](double, double) { return 1.0; }, false},
      {"(A-1)", [](double a, double) { return a - 1; }, false},
      {"(B-1)", [](double, double b) { return b - 1; }, true},
      {"(AB-1)", [](double a, double b) { return a * b - 1; }, true},
      {"(A-1)(B-1)", [](double a, double b) { return (a - 1) * (b - 1); }, true},
  };
  std::vector<Term> all;
  for (int c : {1, 2, 3, 4}) {
    for (const Factor& f : factors) {
      if ((f.two && !two) || (plain && *f.text != '\0')) continue;
      if (std::string(f.text).find_first_of(letters) != std::string::npos) continue;
      for (int i = 0; i <= 2; ++i) {
        for (int j = 0; j <= (two ? 2 : 0); ++j) {
          std::string below = product(i, j);
          if (i > 0 && j > 0) below = "(" + below + ")";
          all.push_back({absl::StrCat(c > 1 ? std::to_string(c) : "", "N", f.text, below.empty() ? "" : "/", below),
                         [=](const Sizes& s) {
                           const auto a = static_cast<double>(s.a), b = static_cast<double>(s.b);
                           return c * static_cast<double>(s.n) * f.value(a, b) / std::pow(a, i) / std::pow(b, j);
                         }});
        }
      }
    }
  }
  if (two) {
    for (int c : {1, 2}) {
      all.push_back({c == 1 ? "max(N/A, N/B)" : "2max(N/A, N/B)", [c](const Sizes& s) {
                       return c * static_cast<double>(s.n) / static_cast<double>(std::min(s.a, s.b));
                     }});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Term& x, const Term& y) { return x.text.size() < y.text.size(); });
  return all;
}

// The shortest sum of at most three terms that has `values` at `points`.
std::optional<std::string> formula(const std::vector<Point>& points, const std::vector<int64_t>& values, bool two) {
  if (std::all_of(values.begin(), values.end(), [](int64_t v) { return v == 0; })) return "0";
  // Where A or B is the same everywhere, too many formulas with it would be true.
  std::string constants;
  const auto same_a = [&](const Point& p) { return p.sizes.a == points[0].sizes.a; };
  const auto same_b = [&](const Point& p) { return p.sizes.b == points[0].sizes.b; };
  if (two && std::all_of(points.begin(), points.end(), same_a)) constants += "A";
  if (two && std::all_of(points.begin(), points.end(), same_b)) constants += "B";
  const std::vector<Term> all = terms(two, /*plain=*/false, constants);
  const size_t n = all.size();
  std::vector<std::vector<double>> table(n);  // by term and point
  for (size_t t = 0; t < n; ++t) {
    for (const Point& p : points) table[t].push_back(all[t].value(p.sizes));
  }
  const auto fits = [&](std::initializer_list<size_t> sum) {
    for (size_t p = 0; p < points.size(); ++p) {
      double total = 0;
      for (size_t t : sum) total += table[t][p];
      if (std::abs(total - static_cast<double>(values[p])) > 1e-3) return false;
    }
    return true;
  };
  std::optional<std::string> best;
  const auto offer = [&](const std::string& text) {
    if (!best || text.size() < best->size()) best = text;
  };
  for (size_t i = 0; i < n; ++i) {
    if (fits({i})) offer(all[i].text);
  }
  if (best) return best;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      if (fits({i, j})) offer(all[i].text + " + " + all[j].text);
    }
  }
  if (best) return best;
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      for (size_t k = j + 1; k < n; ++k) {
        if (fits({i, j, k})) offer(absl::StrCat(all[i].text, " + ", all[j].text, " + ", all[k].text));
      }
    }
  }
  return best;
}

// The sum of at most three plain terms that is nowhere below `values`, and least above them: where it depends on how
// the cuts lie to each other.
std::string bound(const std::vector<Point>& points, const std::vector<int64_t>& values, bool two) {
  const std::vector<Term> all = terms(two, /*plain=*/true);
  double least = std::numeric_limits<double>::infinity();
  std::string best;
  const auto offer = [&](std::initializer_list<const Term*> sum) {
    double above = 0;
    std::string text;
    for (const Term* term : sum) absl::StrAppend(&text, text.empty() ? "" : " + ", term->text);
    for (size_t p = 0; p < points.size(); ++p) {
      double total = 0;
      for (const Term* term : sum) total += term->value(points[p].sizes);
      if (total < static_cast<double>(values[p]) - 1e-3) return;
      above += total / static_cast<double>(values[p]) - 1;
    }
    if (above > least - 1e-9 && (above > least + 1e-9 || text.size() >= best.size())) return;
    least = above;
    best = text;
  };
  for (const Term& a : all) offer({&a});
  for (const Term& a : all) {
    for (const Term& b : all) {
      if (&a < &b) offer({&a, &b});
      for (const Term& c : all) {
        if (&a < &b && &b < &c) offer({&a, &b, &c});
      }
    }
  }
  return "at most " + best;
}

// The peak of the largest step: one formula, the steps' formulas where it depends on the sizes which that is, or a
// bound.
std::string peak_formula(const std::vector<Point>& points, bool two) {
  std::vector<int64_t> peaks;
  for (const Point& p : points) peaks.push_back(p.peak);
  if (const auto one = formula(points, peaks, two)) return *one;
  std::string all;
  for (size_t step = 0; step < points[0].step_peaks.size(); ++step) {
    std::vector<int64_t> values;
    bool ever_largest = false;
    for (const Point& p : points) {
      values.push_back(p.step_peaks[step]);
      ever_largest |= p.step_peaks[step] == p.peak;
    }
    if (!ever_largest) continue;
    const auto text = formula(points, values, two);
    if (!text) return bound(points, peaks, two);
    absl::StrAppend(&all, all.empty() ? "max(" : ", ", *text);
  }
  return all + ")";
}

// Mesh dims are called A and B, as the numbers of ranks are.
Point plan_at(const Row& row, int64_t a, int64_t b, int64_t scale) {
  // Every cut divides.
  const int64_t side = a * a * b * b;
  TensorMeta meta;
  meta.sizes = {side * scale, side};
  while (meta.sizes[1] < 4096) meta.sizes[1] *= 2;
  meta.strides = row_major_strides(meta.sizes);
  Point point;
  point.sizes = {meta.bytes(), a, b};
  const auto parse = [](const std::string& text) { return parse_placements(text).value(); };
  static const auto model = [] {
    CostModel m;
    m.ranks_per_node = int64_t{1} << 20;
    return std::make_shared<const CostModel>(m);
  }();
  PlanOptions options;
  options.cost = model;
  RedistributePlan plan;
  if (row.kind == Row::kTransfer) {
    const World world = World::abstract(a + b);
    std::vector<int64_t> others(static_cast<size_t>(b));
    std::iota(others.begin(), others.end(), a);
    plan = plan_transfer(meta, Layout(DeviceMesh(world, {a}, {"A"}), parse(row.from)),
                         Layout(DeviceMesh(world, {b}, {"B"}, others), parse(row.to)), options);
  } else {
    const bool two = row.kind == Row::kTwoDims;
    const World world = World::abstract(a * b);
    const DeviceMesh mesh = two ? DeviceMesh(world, {a, b}, {"A", "B"}) : DeviceMesh(world, {a}, {"A"});
    plan = plan_redistribution(mesh, meta, parse(row.from), parse(row.to), options);
  }
  point.steps = plan.short_form();
  point.bytes = plan.bytes;
  point.peak = plan.peak_bytes;
  for (const RedistributeStep& step : plan.steps) point.step_peaks.push_back(step.peak_bytes);
  return point;
}

std::string lines(const Row& row) {
  const bool two = row.kind != Row::kOneDim;
  std::vector<std::vector<Point>> by_steps;
  for (const int64_t a : {2, 3, 4, 5, 8}) {
    for (const int64_t b : two ? std::vector<int64_t>{2, 3, 4, 6} : std::vector<int64_t>{1}) {
      if (a == b) continue;  // a square mesh has short cuts
      for (const int64_t scale : {128, 176, 1024}) {
        Point point = plan_at(row, a, b, scale);
        auto it = std::find_if(by_steps.begin(), by_steps.end(),
                               [&](const auto& list) { return list[0].steps == point.steps; });
        if (it == by_steps.end()) it = by_steps.emplace(by_steps.end());
        it->push_back(std::move(point));
      }
    }
  }
  std::string text;
  for (const std::vector<Point>& points : by_steps) {
    std::vector<int64_t> all_bytes;
    for (const Point& p : points) all_bytes.push_back(p.bytes);
    const auto bytes = formula(points, all_bytes, two);
    const Point& p = points.back();
    TORCH_CHECK(bytes, row.from, " -> ", row.to, " (", p.steps, "): no formula for the bytes of ", points.size(),
                " meshes and tensors; the last: N=", p.sizes.n, ", A=", p.sizes.a, ", B=", p.sizes.b, ", bytes ",
                p.bytes);
    absl::StrAppend(&text, "| ", row.from, " | ", row.to, " | ", p.steps, " | ", *bytes, " | ",
                    peak_formula(points, two), " |\n");
  }
  return two ? text : absl::StrReplaceAll(text, {{"A", "W"}});
}

std::string table() {
  std::string text;
  std::optional<Row::Kind> kind;
  for (const Row& row : rows()) {
    if (row.kind != kind) {
      absl::StrAppend(&text, kind ? "\n" : "",
                      row.kind == Row::kOneDim    ? "On one mesh dim of W ranks:\n"
                      : row.kind == Row::kTwoDims ? "On a mesh of A x B ranks:\n"
                                                  : "From a mesh of A ranks to another of B other ranks:\n",
                      "\n| from | to | steps | bytes per rank | peak |\n| --- | --- | --- | --- | --- |\n");
      kind = row.kind;
    }
    text += lines(row);
  }
  return text;
}

int run() {
  return make_page_table({"docs/redistribution.md", "transition table", "//tools:transition_table"}, table());
}

}  // namespace

int main(int argc, char** argv) {
  return run_program("transition_table", "Prints what goes from which layout to which, and what it costs.", argc, argv,
                     run);
}
