// How much an operator's chosen way may cost beyond the cheapest one. Internal to ops/.
#pragma once

namespace dtensor {

// Prices assume an idle network and regard one call alone. A way that sends far fewer bytes, and so suffers less from
// other messages, or that saves a later call an exchange, may take this much longer.
inline constexpr double kLittleLonger = 1.25;

}  // namespace dtensor
