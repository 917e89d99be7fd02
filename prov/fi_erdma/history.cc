#include "fi_erdma/history.h"

#include <langinfo.h>
#include <unistd.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <string_view>

namespace fi_erdma {
namespace {

constexpr size_t kBars = 15;
constexpr const char* kBlocks[] = {" ",      "\u2581", "\u2582", "\u2583", "\u2584",
                                   "\u2585", "\u2586", "\u2587", "\u2588"};
constexpr const char* kLetters[] = {" ", ".", ".", ":", "-", "=", "+", "*", "#"};
constexpr size_t kHighest = std::size(kBlocks) - 1;

}  // namespace

std::string History::add(const std::string& row, double rate) {
  x_rows[row].table = x_table;
  std::deque<double>& rates = x_rows[row].rates;
  rates.push_back(rate);
  if (rates.size() > kBars) rates.pop_front();
  const double most = *std::ranges::max_element(rates);
  std::string line;
  for (const double one : rates) {
    const double share = most > 0 && one > 0 ? one / most : 0;
    const auto height = size_t(std::ceil(share * double(kHighest)));
    line += (x_blocks ? kBlocks : kLetters)[height <= kHighest ? height : kHighest];
  }
  return line;
}

/// A row may be missing for a while, as of a process that was changing its page.
void History::end_table() {
  ++x_table;
  std::erase_if(x_rows, [&](const auto& row) { return row.second.table + kBars < x_table; });
}

bool History::terminal_shows_blocks() {
  std::setlocale(LC_CTYPE, "");
  return isatty(STDOUT_FILENO) && std::string_view(nl_langinfo(CODESET)) == "UTF-8";
}

}  // namespace fi_erdma
