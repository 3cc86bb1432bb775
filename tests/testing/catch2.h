// Catch2 2.13, which Debian 12 has, or 3, which Debian 13 has, by the names of 2.13.
#pragma once

#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#include <string>

namespace Catch {
using TestEventListenerBase = EventListenerBase;
using Matchers::EndsWith;
using Matchers::Equals;
using Matchers::MatcherBase;
using Matchers::Matches;
using Matchers::StartsWith;
inline auto Contains(const std::string& part) { return Matchers::ContainsSubstring(part); }
}  // namespace Catch
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
