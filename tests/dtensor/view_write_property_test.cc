// Random programs of views of views and writes to them, compared with plain tensors, gradients too.
#include <torch/autograd.h>

#include <functional>
#include <sstream>
#include <string>

#include "tests/dtensor/view_pairs.h"
#include "tests/testing/property.h"

namespace dtensor::testing {
namespace {

using Change = std::function<void(const Tensor&)>;
using View = std::function<Tensor(const Tensor&)>;

std::string text(const Tensor& t) { return c10::str(t.sizes()); }

// A view of a tensor like `t`, and its name.
std::pair<std::string, View> draw_view(const Tensor& t) {
  const int64_t n = t.dim();
  if (n == 0) return {"unsqueeze", [](const Tensor& x) { return x.unsqueeze(0); }};
  const int64_t d = draw(0, n - 1), size = t.size(d);
  switch (draw(0, 9)) {
    case 0:
      if (size == 0) break;
      return [&, i = draw(0, size - 1)] {
        return std::pair<std::string, View>{c10::str("select ", d, " ", i),
                                            [=](const Tensor& x) { return x.select(d, i); }};
      }();
    case 1:
    case 2: {
      const int64_t from = draw(0, size), to = draw(from, size), step = draw(1, 2);
      return {c10::str("slice ", d, " ", from, " ", to, " ", step),
              [=](const Tensor& x) { return x.slice(d, from, to, step); }};
    }
    case 3:
      return {c10::str("transpose ", d), [=](const Tensor& x) { return x.transpose(0, d); }};
    case 4:
      return {c10::str("unsqueeze ", d), [=](const Tensor& x) { return x.unsqueeze(d); }};
    case 5:
      return {"squeeze", [](const Tensor& x) { return x.squeeze(); }};
    case 6:
      if (!t.is_contiguous()) break;
      return {"flatten", [](const Tensor& x) { return x.view(-1); }};
    case 7:
      if (!t.is_contiguous() || size % 2 != 0) break;
      return {c10::str("unflatten ", d), [=](const Tensor& x) { return x.unflatten(d, {2, size / 2}); }};
    case 8:
      if (n < 2) break;
      return {"diagonal", [](const Tensor& x) { return x.diagonal(0, 0, 1); }};
    case 9:
      if (size < 3) break;
      return {c10::str("unfold ", d), [=](const Tensor& x) { return x.unfold(d, 2, 2); }};
  }
  return {"alias", [](const Tensor& x) { return x.alias(); }};
}

std::pair<std::string, Change> draw_write() {
  const double v = static_cast<double>(draw(1, 5));
  switch (draw(0, 6)) {
    case 0:
      return {"zero_", [](const Tensor& t) { t.zero_(); }};
    case 1:
      return {"fill_", [=](const Tensor& t) { t.fill_(v); }};
    case 2:
      return {"mul_", [=](const Tensor& t) { t.mul_(v); }};
    case 3:
      return {"add_ of itself", [](const Tensor& t) { t.add_(t.cos()); }};
    case 4:
      return {"clamp_", [=](const Tensor& t) { Tensor(t).clamp_(-v, v); }};
    case 5:
      return {"masked_fill_", [=](const Tensor& t) { t.masked_fill_(t.gt(v), -v); }};
    default:
      return {"copy_", [](const Tensor& t) { t.copy_(t.sin()); }};
  }
}

DeviceMesh draw_mesh() {
  const auto& meshes = view_meshes();
  return meshes[draw(0, static_cast<int64_t>(meshes.size()) - 1)];
}

Placements draw_layout(const DeviceMesh& mesh, int64_t ndim) {
  const auto all = layouts(mesh, ndim);
  return all[draw(0, static_cast<int64_t>(all.size()) - 1)];
}

TEST_CASE("view writes: random views of views and writes to them") {
  CHECK(holds("view writes", 400, [] {
    const DeviceMesh mesh = draw_mesh();
    std::vector<int64_t> shape(draw(1, 3));
    for (auto& s : shape) s = draw(1, 6);
    const Placements placements = draw_layout(mesh, static_cast<int64_t>(shape.size()));
    std::ostringstream program;
    program << "x of " << shape << " as " << to_string(placements) << " on " << mesh.to_string() << "\n";
    std::vector<Pair> live = {make(shape, mesh, placements)};
    for (int64_t step = draw(2, 10); step > 0; --step) {
      const Pair at = live[draw(0, static_cast<int64_t>(live.size()) - 1)];
      if (draw(0, 1) == 0) {
        const auto [name, view] = draw_view(at.plain);
        program << name << " of " << text(at.plain) << "\n";
        live.push_back({view(at.plain), view(at.distributed)});
      } else {
        const auto [name, write] = draw_write();
        program << name << " on " << text(at.plain) << "\n";
        write(at.plain);
        write(at.distributed);
        RC_LOG(program.str());
        RC_ASSERT(same(live[0].distributed, live[0].plain));
      }
      const Pair& other = live[draw(0, static_cast<int64_t>(live.size()) - 1)];
      program << "read " << text(other.plain) << "\n";
      RC_LOG(program.str());
      RC_ASSERT(same(other.distributed, other.plain));
    }
  }));
}

TEST_CASE("view writes: gradients through random views and writes") {
  CHECK(holds("gradients of view writes", 200, [] {
    const DeviceMesh mesh = draw_mesh();
    std::vector<int64_t> shape(draw(1, 3));
    for (auto& s : shape) s = draw(1, 5);
    const auto ndim = static_cast<int64_t>(shape.size());
    const Placements of_x = draw_layout(mesh, ndim), of_w = draw_layout(mesh, ndim);
    std::ostringstream program;
    program << "x of " << shape << " as " << to_string(of_x) << " w " << to_string(of_w) << " on " << mesh.to_string()
            << "\n";
    Pair x = make(shape, mesh, of_x);
    const Pair w = {numbers(shape).cos(), distribute_tensor(numbers(shape).cos(), mesh, of_w)};
    for (Tensor* t : {&x.plain, &x.distributed}) t->requires_grad_();
    std::vector<Pair> live = {{x.plain * 1.5, x.distributed * 1.5}};
    for (int64_t step = draw(1, 6); step > 0; --step) {
      const Pair at = live[draw(0, static_cast<int64_t>(live.size()) - 1)];
      if (draw(0, 1) == 0) {
        const auto [name, view] = draw_view(at.plain);
        program << name << " of " << text(at.plain) << "\n";
        live.push_back({view(at.plain), view(at.distributed)});
      } else {
        const double v = static_cast<double>(draw(1, 3));
        const int64_t kind = draw(0, 2);
        program << "write " << kind << " on " << text(at.plain) << "\n";
        for (const Tensor& t : {at.plain, at.distributed}) {
          if (kind == 0) t.mul_(v);
          if (kind == 1) t.fill_(v);
          if (kind == 2) t.add_(t.clone().sin());
        }
      }
    }
    const Pair last = live.back();
    const auto loss = [](const Tensor& y, const Tensor& w, const Tensor& view) {
      return (y * w).relu().sum() + view.sin().sum();
    };
    loss(live[0].plain, w.plain, last.plain).backward();
    loss(live[0].distributed, w.distributed, last.distributed).backward();
    RC_LOG(program.str());
    RC_ASSERT(same(x.distributed.grad(), x.plain.grad()));
  }));
}

}  // namespace
}  // namespace dtensor::testing
