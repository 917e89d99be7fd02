#pragma once

#include <deque>
#include <map>
#include <string>

namespace fi_erdma {

/// The last rates of each row of a table, as a line of bars.
class History {
 public:
  /// `blocks`: the terminal shows UTF-8; otherwise bars are characters of ASCII.
  explicit History(bool blocks) : x_blocks(blocks) {}

  /// Adds a rate to a row, and draws the row: the highest bar is the highest rate that is shown.
  std::string add(const std::string& row, double rate);

  /// Whether standard output is such a terminal.
  static bool terminal_shows_blocks();

 private:
  const bool x_blocks;
  std::map<std::string, std::deque<double>> x_rates;
};

}  // namespace fi_erdma
