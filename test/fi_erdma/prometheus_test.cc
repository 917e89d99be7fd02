#include "fi_erdma/prometheus.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libcheck.h"

using fi_erdma::AskedLook;
using fi_erdma::Block;
using fi_erdma::BlockKind;
using fi_erdma::Process;
using fi_erdma::Snapshot;

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

/// Whose page has this endpoint, and these peers of it.
AskedLook look_at(Block endpoint, std::vector<Block> peers) {
  Process process;
  process.pid = 7;
  process.page.snapshot = Snapshot{
      {BlockKind{"process", {}, {Block{0, {{"shm_cma_refusals", 2}}, {}}}},
       BlockKind{"endpoint", {}, {std::move(endpoint)}}, BlockKind{"peer", {}, std::move(peers)}}};
  AskedLook asked;
  asked.look.processes.push_back(std::move(process));
  asked.asked = asked.answered = {7};
  asked.endpoints = {{7, 0}};
  return asked;
}

Block endpoint(uint64_t any_receives = 0, uint64_t waited = 0) {
  return {0,
          {{"answered", 1500 * kSecond / 1000},
           {"any_receives", any_receives},
           {"any_receive_waited", waited}},
          {{"address", "192.0.2.2:1"}, {"device", "shm"}}};
}

Block peer(fi_erdma::Named<uint64_t> numbers, fi_erdma::Named<std::string> texts = {}) {
  if (!numbers.find("endpoint")) numbers["endpoint"] = 0;
  return {0, std::move(numbers), std::move(texts)};
}

/// The value of the row of a metric of that endpoint; empty = there is none.
std::string value_of(const std::string& text, const std::string& metric, const std::string& label) {
  const std::string row =
      "\n" + metric + "{pid=\"7\",endpoint=\"192.0.2.2:1\",device=\"shm\"" + label + "} ";
  const size_t at = text.find(row);
  if (at == text.npos) return {};
  const size_t begin = at + row.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

void expect(const AskedLook& asked, const char* metric, const char* label, const char* value) {
  const std::string found = value_of(prometheus_text(asked), metric, label);
  ck_assert_msg(found == value, "%s%s is %s, not %s", metric, label, found.c_str(), value);
}

TEST(operations_that_are_not_over_are_counted_by_kind) {
  const AskedLook asked =
      look_at(endpoint(5), {peer({{"sends", 2}, {"receives", 1}}),
                            peer({{"sends", 1}, {"unexpected", 3}, {"matched", 4}}),
                            peer({{"sends", 100}, {"endpoint", 1}})});
  expect(asked, "erdma_operations_pending", ",kind=\"send\"", "3");
  expect(asked, "erdma_operations_pending", ",kind=\"receive\"", "6");
  expect(asked, "erdma_operations_pending", ",kind=\"unexpected\"", "3");
  expect(asked, "erdma_operations_pending", ",kind=\"matched\"", "4");
}

TEST(peers_stall_from_a_second_on_by_what_they_wait_for) {
  const AskedLook asked =
      look_at(endpoint(), {peer({{"send_waited", 3 * kSecond}}, {{"sends_for", "room"}}),
                           peer({{"send_waited", 2 * kSecond}, {"receive_waited", 5 * kSecond / 2}},
                                {{"sends_for", "room"}}),
                           peer({{"send_waited", kSecond - 1}}, {{"sends_for", "connection"}}),
                           peer({{"matched_waited", kSecond}}, {{"matched_for", "flush"}}),
                           peer({{"matched_waited", kSecond}}, {{"matched_for", "\"strange\""}})});
  expect(asked, "erdma_stalled_peers", ",waits_for=\"room\"", "2");
  expect(asked, "erdma_stalled_seconds", ",waits_for=\"room\"", "3.000");
  expect(asked, "erdma_stalled_peers", ",waits_for=\"message\"", "1");
  expect(asked, "erdma_stalled_seconds", ",waits_for=\"message\"", "2.500");
  expect(asked, "erdma_stalled_peers", ",waits_for=\"connection\"", "");
  expect(asked, "erdma_stalled_peers", ",waits_for=\"flush\"", "1");
  expect(asked, "erdma_stalled_peers", ",waits_for=\"other\"", "1");
}

TEST(a_receive_from_any_peer_stalls_without_a_peer) {
  const AskedLook asked = look_at(endpoint(1, 4 * kSecond), {});
  expect(asked, "erdma_stalled_peers", ",waits_for=\"message\"", "0");
  expect(asked, "erdma_stalled_seconds", ",waits_for=\"message\"", "4.000");
}

TEST(who_does_not_answer_shows_when_it_last_did_and_nothing_that_may_be_over) {
  AskedLook asked = look_at(endpoint(1, kSecond), {peer({{"sends", 2}})});
  ck_assert(prometheus_text(asked).find("\nerdma_calls_libfabric{pid=\"7\"} 1\n") !=
            std::string::npos);
  asked.answered.clear();
  asked.endpoints.clear();
  const std::string text = prometheus_text(asked);
  ck_assert(text.find("\nerdma_calls_libfabric{pid=\"7\"} 0\n") != std::string::npos);
  ck_assert(text.find("\nerdma_operations_pending{") == std::string::npos);
  ck_assert(text.find("\nerdma_stalled") == std::string::npos);
  expect(asked, "erdma_answered_timestamp_seconds", "", "1.500");
  // To open or close an endpoint it called libfabric.
  asked.changed = {7};
  ck_assert(prometheus_text(asked).find("\nerdma_calls_libfabric{pid=\"7\"} 1\n") !=
            std::string::npos);
  ck_assert(prometheus_text(asked).find("\nerdma_operations_pending{") == std::string::npos);
  asked.asked.clear();
  ck_assert(prometheus_text(asked).find("\nerdma_calls_libfabric{") == std::string::npos);
}

// The thread that polls the other endpoints of a process answers for these only.
TEST(an_endpoint_that_nobody_polls_shows_nothing_that_may_be_over) {
  AskedLook asked = look_at(endpoint(1, kSecond), {peer({{"sends", 2}})});
  asked.endpoints = {{7, 1}, {8, 0}};
  const std::string text = prometheus_text(asked);
  ck_assert(text.find("\nerdma_calls_libfabric{pid=\"7\"} 1\n") != text.npos);
  ck_assert(text.find("\nerdma_operations_pending{") == text.npos);
  ck_assert(text.find("\nerdma_stalled") == text.npos);
  expect(asked, "erdma_answered_timestamp_seconds", "", "1.500");
}

TEST(where_an_endpoint_is_hidden_nothing_tells_that_no_call_is_made) {
  AskedLook asked = look_at(endpoint(), {});
  ck_assert(prometheus_text(asked).find("\nerdma_hidden_endpoints{pid=\"7\"} 0\n") !=
            std::string::npos);
  asked.answered.clear();
  asked.look.processes[0].page.snapshot =
      Snapshot{{BlockKind{"process", {}, {Block{0, {{"hidden_endpoints", 3}}, {}}}}}};
  const std::string text = prometheus_text(asked);
  ck_assert(text.find("\nerdma_hidden_endpoints{pid=\"7\"} 3\n") != std::string::npos);
  ck_assert(text.find("\nerdma_calls_libfabric{") == std::string::npos);
}

// The collector of node_exporter refuses a whole file in which two rows have the same labels.
TEST(endpoints_without_an_address_have_no_rows) {
  AskedLook asked = look_at(endpoint(), {});
  auto& kinds = asked.look.processes[0].page.snapshot->kinds;
  for (const uint32_t index : {1u, 2u}) kinds[1].blocks.push_back({index, {{"enabled", 0}}, {}});
  const std::string text = prometheus_text(asked);
  ck_assert(text.find(",endpoint=\"\"") == text.npos);
  ck_assert(text.find(",endpoint=\"192.0.2.2:1\"") != text.npos);
}

TEST(of_endpoints_with_the_same_labels_the_first_has_rows) {
  AskedLook asked = look_at(endpoint(3), {});
  auto& endpoints = asked.look.processes[0].page.snapshot->kinds[1].blocks;
  endpoints.push_back(endpoints[0]);
  const std::string text = prometheus_text(asked);
  const size_t at = text.find("\nerdma_operations_pending{");
  ck_assert(text.find("kind=\"receive\"", text.find("kind=\"receive\"") + 1) == text.npos);
  ck_assert(at != text.npos);
}

// Each row of each endpoint has the labels of its process.
TEST(a_label_is_no_longer_than_any_of_the_provider) {
  AskedLook asked = look_at(endpoint(3), {});
  auto& shown = asked.look.processes[0].page.snapshot->kinds[0].blocks[0];
  shown.texts["job"] = std::string(128, 'j');
  const std::string row =
      "\nerdma_hidden_endpoints{pid=\"7\",job=\"" + std::string(128, 'j') + "\"} 0\n";
  ck_assert(prometheus_text(asked).find(row) != std::string::npos);
  shown.texts["job"] = std::string(4096, 'j');
  ck_assert(prometheus_text(asked).find(row) != std::string::npos);
}

TEST(events_are_counters_of_the_process) {
  const std::string text = prometheus_text(look_at(endpoint(), {}));
  ck_assert(text.find("\n# TYPE erdma_shm_cma_refusals_total counter\n"
                      "erdma_shm_cma_refusals_total{pid=\"7\"} 2\n") != std::string::npos);
  ck_assert(text.find("\nerdma_nic_connects_total{") == std::string::npos);
}

// A sum without the block would be less than before, and Prometheus would add all of it anew.
TEST(a_process_that_was_changing_a_block_has_no_counters) {
  AskedLook asked = look_at(endpoint(3), {peer({})});
  asked.look.processes[0].page.snapshot->kinds[2].unsettled = 1;
  const std::string text = prometheus_text(asked);
  for (size_t at = 0; (at = text.find("\n# TYPE ", at)) != text.npos; ++at) {
    const size_t end = text.find('\n', at + 1);
    if (text.substr(at, end - at).ends_with(" counter"))
      ck_assert(end + 1 == text.size() || text[end + 1] == '#');
  }
  expect(asked, "erdma_operations_pending", ",kind=\"receive\"", "3");
}

using fi_erdma::FieldInfo;
constexpr auto kNumber = fi_erdma::layout::Type::number;
constexpr auto kCounter = fi_erdma::layout::Meaning::counter;

TEST(copied_bytes_are_counters_by_the_code_of_their_reason) {
  Block one = endpoint();
  one.numbers["nic_refused_room_bytes"] = 5;
  one.numbers["nic_refused_always_bytes"] = 20;
  one.numbers["nic_refused_memory_bytes"] = 3;
  // The second peer is reached by CMA, and had a few bytes copied all the same.
  AskedLook asked = look_at(one, {peer({{"shm_cma_refusals", 1}, {"shm_copied_in_bytes", 40}}),
                                  peer({{"shm_copied_out_bytes", 7}})});
  auto& kinds = asked.look.processes[0].page.snapshot->kinds;
  kinds[0].blocks[0].numbers["shm_refused_bytes"] = 2;
  kinds[0].fields = {FieldInfo{"shm_refused_bytes", "bytes", kNumber, kCounter, 0, 8}};
  for (const char* const name :
       {"nic_refused_room_bytes", "nic_refused_always_bytes", "nic_refused_memory_bytes"})
    kinds[1].fields.push_back(FieldInfo{name, "bytes", kNumber, kCounter, 0, 8});
  const std::string text = prometheus_text(asked);
  ck_assert(text.find("\n# TYPE erdma_copied_bytes_total counter\n"
                      "erdma_copied_bytes_total{pid=\"7\",reason=\"W203\"} 23\n"
                      "erdma_copied_bytes_total{pid=\"7\",reason=\"W401\"} 42\n"
                      "erdma_copied_bytes_total{pid=\"7\",reason=\"W402\"} 5\n#") !=
            std::string::npos);
}

}  // namespace
