#pragma once

#include <cstdint>
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
  /// To be called after each table. Drops rows that were in none of the latest tables, as those of
  /// processes that ended.
  void end_table();

  /// Whether standard output is a terminal that shows UTF-8 block characters.
  static bool terminal_shows_blocks();

 private:
  struct Row {
    std::deque<double> rates;
    uint64_t table = 0;  ///< the number of the last table that had the row
  };

  const bool x_blocks;
  std::map<std::string, Row> x_rows;
  uint64_t x_table = 0;
};

}  // namespace fi_erdma
