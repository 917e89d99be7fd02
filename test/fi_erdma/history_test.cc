#include "fi_erdma/history.h"

#include <optional>
#include <string>

#include "fi_erdma/devices.h"
#include "libcheck.h"

using fi_erdma::History;
using fi_erdma::RateHistory;

namespace {

void expect(const std::string& bars, const char* wanted) {
  ck_assert_str_eq(bars.c_str(), wanted);
}

TEST(a_device_has_its_highest_average_and_lowest_rate_and_the_time) {
  RateHistory rates;
  for (const uint64_t bytes : {10u, 30u, 20u}) rates.add(bytes, 1);
  ck_assert_double_eq(rates.now(), 20);
  ck_assert_double_eq(rates.most(), 30);
  ck_assert_double_eq(rates.average(), 20);
  ck_assert_double_eq(rates.least(), 10);
  ck_assert_double_eq(rates.seconds(), 3);
}

TEST(the_average_is_that_of_the_time_and_not_of_the_looks) {
  RateHistory rates;
  rates.add(10 * 60, 60);
  rates.add(30 * 30, 30);
  ck_assert_double_eq(rates.average(), 1500 / 90.0);
}

TEST(a_device_that_was_seen_once_has_no_rate) {
  RateHistory rates;
  rates.add(1000, 0);
  for (const double rate : {rates.now(), rates.most(), rates.average(), rates.least()})
    ck_assert_double_eq(rate, 0);
  rates.add(0, 1);
  rates.add(5, 1);
  ck_assert_double_eq(rates.least(), 0);
}

TEST(a_counter_that_could_not_be_read_gives_no_rate) {
  constexpr uint64_t kSinceBoot = 1'000'000'000;
  RateHistory rates;
  rates.look(kSinceBoot, 0);
  rates.look(kSinceBoot + 10, 1);
  rates.look(std::nullopt, 1);
  ck_assert_double_eq(rates.now(), 10);
  rates.look(kSinceBoot + 50, 1);  // 40 bytes in two seconds
  ck_assert_double_eq(rates.now(), 20);
  ck_assert_double_eq(rates.most(), 20);
  ck_assert_double_eq(rates.least(), 10);
  ck_assert_double_eq(rates.seconds(), 3);
}

TEST(a_counter_that_is_known_late_has_grown_by_nothing) {
  RateHistory rates;
  rates.look(std::nullopt, 0);
  rates.look(1'000'000'000, 1);
  ck_assert_double_eq(rates.most(), 0);
  rates.look(1'000'000'004, 2);
  ck_assert_double_eq(rates.most(), 2);
  ck_assert_double_eq(rates.average(), 2);
}

TEST(the_summary_has_each_rate_in_its_row) {
  RateHistory received, sent;
  for (const uint64_t bytes : {10u, 30u, 20u}) received.add(bytes * 60, 60);
  for (const uint64_t bytes : {1u, 3u, 5u}) sent.add(bytes * 60 * 1024, 60);
  const std::string text = summary_of("erdma_0", {3600, 512, 7, {}}, received, sent);
  for (const char* const row :
       {" bytes           3.52 KiB |             512 B\n",
        " packets                7 |                 -\n",
        " now               20 B/s |        5.00 KiB/s\n",
        " max               30 B/s |        5.00 KiB/s\n",
        " average           20 B/s |        3.00 KiB/s\n",
        " min               10 B/s |        1.00 KiB/s\n", " time                3.00 minutes\n"})
    ck_assert_msg(text.find(row) != text.npos, "%s is not in %s", row, text.c_str());
}

TEST(the_highest_bar_stands_for_the_highest_rate_shown) {
  History history(false);
  expect(history.add("a", 10), "#");
  expect(history.add("a", 30), ":#");
  expect(history.add("a", 20), ":#+");
  expect(history.add("b", 1), "#");
  expect(history.add("a", 0), ":#+ ");
}

TEST(a_terminal_that_shows_blocks_gets_blocks) {
  History history(true);
  history.add("a", 10);
  history.add("a", 30);
  expect(history.add("a", 20), "\u2583\u2588\u2586");
}

void print_tables_without_a(History& history, int count) {
  for (int i = 0; i < count; ++i) {
    history.end_table();
    history.add("b", 1);
  }
}

TEST(a_row_that_is_in_no_table_any_more_is_dropped) {
  History history(false);
  history.add("a", 10);
  history.add("b", 1);
  print_tables_without_a(history, 15);
  expect(history.add("a", 20), "-#");
  print_tables_without_a(history, 16);
  expect(history.add("a", 5), "#");
  expect(history.add("b", 1), "###############");
}

TEST(the_oldest_rates_leave_a_row) {
  History history(false);
  history.add("a", 1000);
  std::string line;
  for (int i = 0; i < 14; ++i) line = history.add("a", 1);
  expect(line, "#..............");
  expect(history.add("a", 1), "###############");
}

}  // namespace
