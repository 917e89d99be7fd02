#pragma once

#include <deque>
#include <map>
#include <string>

namespace fi_erdma {

/// The latest rates of each row of a table, drawn as a line of bars.
class History {
 public:
  /// `blocks`: draw bars with UTF-8 block characters, otherwise with ASCII characters.
  explicit History(bool blocks) : x_blocks(blocks) {}

  /// Adds a rate to a row and draws the row. The highest bar stands for the highest rate shown.
  std::string add(const std::string& row, double rate);

  /// Whether standard output is a terminal that shows UTF-8 block characters.
  static bool terminal_shows_blocks();

 private:
  const bool x_blocks;
  std::map<std::string, std::deque<double>> x_rates;
};

}  // namespace fi_erdma
