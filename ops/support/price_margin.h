// What the ways that operators choose from may cost more than the cheapest. Internal to ops/.
#pragma once

namespace dtensor {

// Prices are of an idle network, and of this call alone. A way that sends far fewer bytes, which others' messages slow
// down less, or spares a later call an exchange, may take that much longer.
inline constexpr double kLittleLonger = 1.25;

}  // namespace dtensor
