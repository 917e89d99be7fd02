#include "fi_erdma/gaps.h"

#include "libcheck.h"

using fi_erdma::Block;
using fi_erdma::BlockKind;
using fi_erdma::gaps_of;
using fi_erdma::Look;
using fi_erdma::Process;
using fi_erdma::Snapshot;

namespace {

Look look(uint64_t left_out, unsigned unsettled, unsigned more_pages, uint64_t hidden = 0) {
  Process process;
  process.pid = 4711;
  process.more_pages = more_pages;
  const fi_erdma::FieldInfo counter{
      "left_out", "", fi_erdma::layout::Type::number, fi_erdma::layout::Meaning::counter, 8, 8};
  const fi_erdma::FieldInfo gauge{"hidden_endpoints",
                                  "",
                                  fi_erdma::layout::Type::number,
                                  fi_erdma::layout::Meaning::gauge,
                                  16,
                                  8};
  process.page.snapshot =
      Snapshot{{BlockKind{"process",
                          {counter, gauge},
                          {Block{0, {{"left_out", left_out}, {"hidden_endpoints", hidden}}, {}}}},
                BlockKind{"peer", {}, {}, unsettled}}};
  Look now;
  now.processes.push_back(std::move(process));
  return now;
}

/// The gaps of a look are those of the document of its process as well.
void check(const Look& now, std::vector<std::string> expected) {
  ck_assert(gaps_of(now) == expected);
  ck_assert(gaps_of(fi_erdma::to_json(now.processes[0], false), "4711") == expected);
}

TEST(where_everything_is_shown_there_is_no_gap) {
  check(look(0, 0, 0), {});
  ck_assert(fi_erdma::gaps_of_refused(0).empty());
}

TEST(each_gap_of_a_process_is_told_with_its_number) {
  check(look(2, 0, 0), {"4711: 2 endpoints or peers were left out: the statistics page was full"});
  check(look(0, 1, 0), {"4711: 1 block is missing or incomplete: the process was changing the "
                        "statistics page"});
  check(look(0, 0, 1), {"4711: 1 further statistics page is not shown: the process has several "
                        "copies of the provider"});
  check(look(0, 0, 0, 2), {"4711: 2 open endpoints are not shown: what waits there is unknown, and "
                           "their bytes are counted once they close"});
  ck_assert_uint_eq(gaps_of(look(3, 4, 5, 6)).size(), 4);
}

TEST(processes_that_were_not_looked_at_are_counted) {
  Look now = look(0, 0, 0);
  now.refused = 3;
  const std::vector<std::string> gaps = gaps_of(now);
  ck_assert_uint_eq(gaps.size(), 1);
  ck_assert_str_eq(gaps[0].c_str(),
                   "3 processes were not looked at: other users run them, or the kernel protects "
                   "them; root sees those that use erdma");
}

TEST(a_process_without_a_page_has_a_fault_and_no_gap) {
  Look now = look(1, 1, 0);
  now.processes[0].page.snapshot.reset();
  ck_assert(gaps_of(now).empty());
}

TEST(a_document_that_holds_anything_has_no_gap) {
  for (const char* const text :
       {"{}", R"({"process": null})", R"({"process": {"counters": 3}})",
        R"({"process": {"counters": {"left_out": "x"}}, "unsettled": -1, "more_pages": []})"})
    ck_assert_msg(gaps_of(fi_erdma::Json::parse(text), "x").empty(), "%s", text);
}

}  // namespace
