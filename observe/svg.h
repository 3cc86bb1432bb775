// Text of SVG elements, for all pictures.
#pragma once

#include <string>

namespace dtensor::internal {

// The beginning of a picture of this size in a small sans-serif font; "</svg>" ends it.
std::string svg_begin(double width, double height);
// With entities for the characters that XML reserves.
std::string svg_escaped(const std::string& s);
// With one decimal: "12.0".
std::string svg_number(double v);
// A text element; `s` is escaped.
std::string svg_text(double x, double y, const std::string& s, const std::string& attributes);
// A rectangle that shows `title` where the pointer is; "": none.
std::string svg_rect(double x, double y, double width, double height, const std::string& attributes,
                     const std::string& title = "");

}  // namespace dtensor::internal
