#include "fi_erdma/json.h"

#include <ios>
#include <istream>
#include <stdexcept>
#include <streambuf>
#include <string>
#include <utility>

#include "fi_erdma/pages.h"
#include "libcheck.h"

using namespace erdma::test;
using erdma::stat_layout::Meaning;
using erdma::stat_layout::Type;
using erdma::util::StatPage;
using fi_erdma::Json;
using fi_erdma::Look;
using fi_erdma::Process;
using fi_erdma::Rates;

namespace {

Process process_of(const StatPage& page, pid_t pid) {
  return {pid, 'S', fi_erdma::read_page(page.bytes()), 0};
}

/// As the buffer of a file that cannot be read any further.
class BrokenFile : public std::streambuf {
 public:
  explicit BrokenFile(std::string text) : x_text(std::move(text)) {
    setg(x_text.data(), x_text.data(), x_text.data() + x_text.size());
  }

 private:
  int_type underflow() override { throw std::ios_base::failure("broken"); }

  std::string x_text;
};

TEST(input_that_can_not_be_read_is_named_so_wherever_it_breaks, 2) {
  BrokenFile file(_i == 0 ? "" : "{\"schema\": ");
  std::istream from(&file);
  std::string why;
  try {
    fi_erdma::for_each_document(from, "doctor", "findings", [](Json&) {});
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  ck_assert_str_eq(why.c_str(), "what came cannot be read");
}

// Names that the program gives itself, or numbers where readers expect text.
TEST(a_strange_page_does_not_break_the_schema) {
  constexpr erdma::util::StatKind kKinds[] = {{"process", 64, 1}};
  constexpr erdma::util::StatField kFields[] = {
      {"index", 0, Type::text, Meaning::fact, "", 8, 8},
      {"counters", 0, Type::number, Meaning::fact, "", 8, 8},
      {"rates", 0, Type::number, Meaning::fact, "", 8, 8},
      {"host", 0, Type::number, Meaning::fact, "", 8, 8},
      {"stands", 0, Type::text, Meaning::fact, "", 8, 8},
      {"link", 0, Type::number, Meaning::fact, "", 8, 8},
      {"send_kind", 0, Type::number, Meaning::fact, "", 8, 8},
      {"sends_for", 0, Type::number, Meaning::fact, "", 8, 8},
      {"matched_for", 0, Type::number, Meaning::fact, "", 8, 8},
      {"job", 0, Type::text, Meaning::fact, "", 8, 8},
      {"other", 0, Type::number, Meaning::fact, "", 8, 8}};
  auto page = StatPage::create(kKinds, kFields);
  ck_assert(bool(page));
  std::byte* const block = (*page)->take(0);
  std::memcpy(block + 8, "a\0\0\0\0\0\0\0", 8);
  StatPage::end_change(block);
  const Json json = fi_erdma::to_json(process_of(**page, 1))["process"];
  ck_assert_int_eq(json["index"].get<int>(), 0);
  ck_assert(json["counters"].is_object());
  for (const char* const name :
       {"rates", "host", "stands", "link", "send_kind", "sends_for", "matched_for"})
    ck_assert_msg(!json.contains(name), "%s", name);
  const auto job = json["job"].get<std::string>();
  ck_assert_str_eq(job.c_str(), "a");
  ck_assert_int_eq(json["other"].get<int>(), 'a');
}

TEST(a_rate_is_that_of_the_same_endpoint_of_the_same_process) {
  const auto page = make_page();
  show_process(*page, 1);
  ShownEndpoint& first = show_endpoint(*page, "a");
  ShownEndpoint& second = show_endpoint(*page, "b");
  Look before{{}, {}}, now{{}, {}};
  now.at += std::chrono::seconds(2);
  first.bytes = 10, second.bytes = 100;
  before.processes.push_back(process_of(*page, 7));
  before.processes.push_back(process_of(*page, 8));
  first.bytes = 30, second.bytes = 700;
  now.processes.push_back(process_of(*page, 8));
  now.processes.push_back(process_of(*page, 9));
  const Rates rates(&before, now);
  const auto rate = [&](size_t process, size_t endpoint) {
    const Process& of = now.processes[process];
    return rates.of(of, of.page.snapshot->kind("endpoint")->blocks[endpoint], "ring_tx_bytes");
  };
  ck_assert(rate(0, 0) == 10.0);
  ck_assert(rate(0, 1) == 300.0);
  ck_assert(!rate(1, 0));
  // Its block became another's.
  page->give_back(block_of(second));
  show_endpoint(*page, "c").bytes = 900;
  now.processes[0] = process_of(*page, 8);
  ck_assert(rate(0, 0) == 10.0);
  ck_assert(!rate(0, 1));
}

}  // namespace
