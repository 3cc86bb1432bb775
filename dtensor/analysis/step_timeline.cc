#include "dtensor/step_timeline.h"

#include <algorithm>
#include <cstddef>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "observe/svg.h"
#include "plan/plan_text.h"

namespace dtensor {
using namespace internal;

namespace {

using Kind = StepSpan::Kind;

struct SpanLook {
  const char* name;
  const char* colour;
};

SpanLook look_of(Kind kind) {
  switch (kind) {
    case Kind::kProduct:
      return {"matrix products", "#7aa6d9"};
    case Kind::kOperator:
      return {"other operators", "#8cc084"};
    case Kind::kCollective:
      break;
  }
  return {"collectives", "#d9856c"};
}

constexpr double kWidth = 960, kLeft = 110, kRight = 8, kMemoryTop = 24, kMemoryHeight = 180, kRowHeight = 28;
constexpr double kRowsTop = kMemoryTop + kMemoryHeight + 12, kLegendHeight = 44;
constexpr double kNarrow = 0.5;  // pixels; narrower neighbours are drawn as one, in the colour of the longest

std::string span_text(const StepSpan& s) {
  return absl::StrCat(s.name, s.module_path.empty() ? "" : absl::StrCat(" in ", s.module_path));
}

constexpr const char* kRows[] = {"forward, optimizer", "backward", "beside them"};
size_t row_of(const StepSpan& s) { return s.beside ? 2 : s.backward ? 1 : 0; }

class TimelineDrawer {
 public:
  explicit TimelineDrawer(const StepTimeline& timeline) : timeline_(timeline) {
    double seconds = 0;
    for (const StepSpan& span : timeline.spans) {
      seconds = std::max(seconds, span.end);
      rows_[row_of(span)].push_back(&span);
    }
    scale_ = seconds > 0 ? (kWidth - kLeft - kRight) / seconds : 1;
    num_rows_ = rows_[2].empty() ? 2 : 3;
  }

  std::string draw() {
    svg_ = svg_begin(kWidth, top_of(num_rows_) + kLegendHeight);
    draw_memory();
    for (size_t row = 0; row < num_rows_; ++row) draw_row(row);
    draw_legend();
    return svg_ + "</svg>\n";
  }

 private:
  double x_of(double seconds) const { return kLeft + seconds * scale_; }
  static double top_of(size_t row) { return kRowsTop + static_cast<double>(row) * kRowHeight; }

  // One step of the curve for each column of pixels, at the largest memory there.
  void draw_memory() {
    const double bottom = kMemoryTop + kMemoryHeight;
    const double most = static_cast<double>(std::max<int64_t>(timeline_.step.peak_bytes, 1));
    std::string path = absl::StrFormat("M%.1f %.1f", kLeft, bottom);
    const auto& spans = timeline_.spans;
    double right = kLeft;
    for (size_t i = 0; i < spans.size();) {
      int64_t bytes = 0;
      const double left = right;
      for (; i < spans.size() && (right == left || spans[i].beside || x_of(spans[i].end) < left + 1); ++i) {
        bytes = std::max(bytes, spans[i].peak_bytes);
        if (!spans[i].beside) right = x_of(spans[i].end);
      }
      const double y = bottom - kMemoryHeight * static_cast<double>(bytes) / most;
      absl::StrAppendFormat(&path, " V%.1f H%.1f", y, right);
    }
    absl::StrAppendFormat(&path, " V%.1f Z", bottom);
    absl::StrAppend(&svg_, "<path d=\"", path, "\" fill=\"#cdd9ea\" stroke=\"#5b6470\"/>\n");
    const auto peak =
        absl::c_max_element(spans, [](const auto& a, const auto& b) { return a.peak_bytes < b.peak_bytes; });
    const std::string at = peak == spans.end() || peak->peak_bytes < timeline_.step.peak_bytes
                               ? ""
                               : absl::StrCat(" at ", span_text(*peak));
    svg_ += svg_text(kLeft, kMemoryTop - 8, absl::StrCat("peak ", bytes_text(timeline_.step.peak_bytes), at), "");
    svg_ += svg_text(2, kMemoryTop + 10, "memory", "");
  }

  void draw_row(size_t row) {
    svg_ += svg_text(2, top_of(row) + 17, kRows[row], "");
    const std::vector<const StepSpan*>& spans = rows_[row];
    for (size_t i = 0; i < spans.size();) {
      size_t end = i + 1;
      while (end < spans.size() && x_of(spans[end]->end) - x_of(spans[i]->begin) < kNarrow) ++end;
      draw_spans(absl::MakeSpan(spans).subspan(i, end - i), top_of(row));
      i = end;
    }
  }

  void draw_spans(absl::Span<const StepSpan* const> spans, double top) {
    const double begin = spans.front()->begin, end = spans.back()->end;
    const StepSpan* longest =
        *absl::c_max_element(spans, [](const auto* a, const auto* b) { return a->end - a->begin < b->end - b->begin; });
    const std::string more = spans.size() > 1 ? absl::StrCat(" and ", spans.size() - 1, " more") : "";
    svg_ += svg_rect(x_of(begin), top, std::max((end - begin) * scale_, 0.1), kRowHeight - 4,
                     absl::StrCat("fill=\"", look_of(longest->kind).colour, "\""),
                     absl::StrCat(span_text(*longest), more, ", ", seconds_text(end - begin)));
  }

  void draw_legend() {
    const StepPrediction& step = timeline_.step;
    const double y = top_of(num_rows_) + 12;
    svg_ += svg_text(kLeft, y, "0", "");
    svg_ += svg_text(kWidth - kRight, y, seconds_text(step.seconds()), "text-anchor=\"end\"");
    double x = kLeft;
    for (const Kind kind : {Kind::kProduct, Kind::kOperator, Kind::kCollective}) {
      const double seconds = kind == Kind::kProduct    ? step.product_seconds
                             : kind == Kind::kOperator ? step.operator_seconds
                                                       : step.communication_seconds();
      svg_ += svg_rect(x, y + 10, 12, 12, absl::StrCat("fill=\"", look_of(kind).colour, "\""));
      svg_ += svg_text(x + 18, y + 20, absl::StrCat(look_of(kind).name, ", ", seconds_text(seconds)), "");
      x += 240;
    }
  }

  const StepTimeline& timeline_;
  std::vector<const StepSpan*> rows_[3];  // of kRows
  size_t num_rows_ = 2;
  double scale_ = 1;
  std::string svg_;
};

}  // namespace

std::string StepTimeline::to_svg() const { return TimelineDrawer(*this).draw(); }

}  // namespace dtensor
