#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace erdma::util {

/// The Levenshtein distance of two names, ignoring case.
inline size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const bool same = std::toupper(uint8_t(a[i - 1])) == std::toupper(uint8_t(b[j - 1]));
      const size_t replaced = diagonal + (same ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// The one of `names` that `name` was probably meant to be. All of them begin with `prefix`. At
/// most a third of the letters after the prefix may differ. Empty: none is that close.
inline std::string_view nearest_variable(std::string_view name,
                                         std::span<const std::string_view> names,
                                         std::string_view prefix) {
  constexpr size_t kLongest = 64;
  name = name.substr(0, kLongest);
  std::string_view best;
  size_t least = kLongest;
  for (const std::string_view candidate : names) {
    const std::string_view known = candidate.substr(prefix.size());
    const size_t away = distance(name.substr(prefix.size()), known);
    if (away >= least || away > std::max<size_t>(known.size() / 3, 1)) continue;
    least = away;
    best = candidate;
  }
  return best;
}

}  // namespace erdma::util
