#include "observe/svg.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace dtensor::internal {

std::string svg_begin(double width, double height) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" font-family=\"sans-serif\" "
      "font-size=\"11\">\n",
      width, height);
}

std::string svg_escaped(const std::string& s) {
  return absl::StrReplaceAll(s, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string svg_number(double v) { return absl::StrFormat("%.1f", v); }

std::string svg_text(double x, double y, const std::string& s, const std::string& attributes) {
  return absl::StrCat("<text x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" ", attributes, ">", svg_escaped(s),
                      "</text>\n");
}

std::string svg_rect(double x, double y, double width, double height, const std::string& attributes,
                     const std::string& title) {
  const std::string rect = absl::StrCat("<rect x=\"", svg_number(x), "\" y=\"", svg_number(y), "\" width=\"",
                                        svg_number(width), "\" height=\"", svg_number(height), "\" ", attributes);
  if (title.empty()) return rect + "/>\n";
  return absl::StrCat(rect, "><title>", svg_escaped(title), "</title></rect>\n");
}

}  // namespace dtensor::internal
