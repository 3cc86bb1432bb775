// One tensor's card in the picture of a layout.
#pragma once

#include <string>

#include "plan/spec.h"

namespace dtensor::internal {

inline constexpr double kCardWidth = 316, kCardHeight = 214;

struct Card {
  std::string name;
  int64_t count = 0;  // tensors that share it
  SpecPtr spec;
};

// SVG of a card with its upper left corner at (x, y). Style classes: name, dim, note, rank, axis.
std::string draw_card(const Card& card, double x, double y);

// Fill of a rank's parts, light enough for dark text.
std::string rank_colour(int64_t rank, int64_t ranks);

}  // namespace dtensor::internal
