#include "fi_erdma/stat_table.h"

#include <sys/wait.h>

#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include "fi_erdma/pair/sides.h"
#include "fi_erdma/paper.h"
#include "libcheck.h"

using fi_erdma::Block;
using fi_erdma::BlockKind;
using fi_erdma::Look;
using fi_erdma::Paper;
using fi_erdma::Process;
using fi_erdma::Rates;
using fi_erdma::Snapshot;
using fi_erdma::StatTable;

namespace {

/// One process with two endpoints and one peer of each.
Look look() {
  Process process;
  process.pid = 4711;
  BlockKind peers{"peer",
                  {},
                  {Block{0, {{"endpoint", 0}}, {{"path", "nic"}, {"link", "connecting"}}},
                   Block{1, {{"endpoint", 1}}, {{"path", "nic"}, {"link", "waiting"}}}}};
  process.page.snapshot =
      Snapshot{{BlockKind{"process", {}, {Block{0, {}, {}}}},
                BlockKind{"endpoint", {}, {Block{0, {}, {}}, Block{1, {}, {}}}}, std::move(peers)}};
  Look now;
  now.processes.push_back(std::move(process));
  return now;
}

/// What a table by peer prints, in a process of its own.
std::string printed(const StatTable& table, const Look& now) {
  const Paper paper;
  const pid_t child = fi_erdma::pair::spawn([&] {
    paper.take_output();
    table.print_by_peer(now, Rates(nullptr, now));
    return std::fflush(stdout);
  });
  int status = -1;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert_int_eq(status, 0);
  return paper.read();
}
bool says(const std::string& text, const char* words) {
  return text.find(words) != text.npos;
}

// What a link was at the last answer may be over.
TEST(the_state_of_a_link_is_shown_where_its_endpoint_has_just_told_it) {
  const Look now = look();
  ck_assert(!says(printed({}, now), "connecting"));
  StatTable table;
  table.answered = {{4711, 0}};
  const std::string text = printed(table, now);
  ck_assert(says(text, "nic  connecting"));
  ck_assert(!says(text, "waiting"));
}

}  // namespace
