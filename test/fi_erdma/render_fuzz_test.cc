#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "fabric/stat_blocks.h"
#include "fi_erdma/costs.h"
#include "fi_erdma/descriptor.h"
#include "fi_erdma/endpoints.h"
#include "fi_erdma/gaps.h"
#include "fi_erdma/history.h"
#include "fi_erdma/json.h"
#include "fi_erdma/pages.h"
#include "fi_erdma/paper.h"
#include "fi_erdma/prometheus.h"
#include "fi_erdma/spoiler.h"
#include "fi_erdma/stat_table.h"
#include "fi_erdma/waits.h"
#include "libcheck.h"

/// Whatever a page holds, each form in which fi_erdma prints it stays whole. ERDMA_FUZZ_STEPS,
/// ERDMA_FUZZ_SEED.
using namespace erdma::test;
using erdma::fabric::EndpointBlock;
using erdma::fabric::PeerBlock;
using erdma::fabric::PeerNicBlock;
using erdma::fabric::PeerWaitsBlock;
using erdma::fabric::ProcessBlock;
using erdma::util::StatPage;
using fi_erdma::AskedLook;
using fi_erdma::Endpoints;
using fi_erdma::Json;
using fi_erdma::Look;
using fi_erdma::Process;
using fi_erdma::Rates;
using fi_erdma::Snapshot;

namespace {

TEST_CASE(.name = "fuzz", .timeout = 300);

constexpr pid_t kPids[] = {101, 102, 103};

/// A page with the fields of the provider, and room for a few blocks.
std::unique_ptr<StatPage> make_provider_page() {
  std::vector<erdma::util::StatKind> kinds(erdma::fabric::kStatKinds.begin(),
                                           erdma::fabric::kStatKinds.end());
  for (auto& kind : kinds) kind.capacity = std::min(kind.capacity, 4u);
  auto page = StatPage::create(kinds, erdma::fabric::kStatFields);
  ck_assert(bool(page));
  return std::move(*page);
}

template <typename Block, typename Fill>
void show(StatPage& page, uint16_t kind, const Fill& fill) {
  auto* const block = reinterpret_cast<Block*>(page.take(kind));
  ck_assert_ptr_nonnull(block);
  fill(*block);
  StatPage::end_change(reinterpret_cast<std::byte*>(block));
}

template <typename Part>
Part& part_of(StatPage& page, const PeerBlock& peer, uint16_t kind) {
  std::byte* const part = page.part(reinterpret_cast<const std::byte*>(&peer), kind);
  ck_assert_ptr_nonnull(part);
  return *reinterpret_cast<Part*>(part);
}

void show_blocks(StatPage& page) {
  using erdma::util::put_text;
  show<ProcessBlock>(page, erdma::fabric::kProcessKind, [](ProcessBlock& process) {
    process.rank = process.started = 1;
    put_text(process.command, "a.out");
  });
  for (int i = 0; i < 3; ++i)
    show<EndpointBlock>(page, erdma::fabric::kEndpointKind, [i](EndpointBlock& endpoint) {
      endpoint.enabled = i < 2;
      endpoint.answered = endpoint.any_receives = uint64_t(i);
      if (i < 2) put_text(endpoint.address, std::to_string(i));
      put_text(endpoint.this_host, "shared memory");
      put_text(endpoint.other_hosts, "RDMA of copies [W203]");
      put_text(endpoint.settings, "FI_ERDMA_SHM_EAGER_SIZE=64 FI_ERDMA_NIC_EAGER_SIZE=x");
    });
  for (int i = 0; i < 4; ++i)
    show<PeerBlock>(page, erdma::fabric::kPeerKind, [&](PeerBlock& peer) {
      auto& nic = part_of<PeerNicBlock>(page, peer, erdma::fabric::kPeerNicKind);
      auto& waits = part_of<PeerWaitsBlock>(page, peer, erdma::fabric::kPeerWaitsKind);
      peer.endpoint = uint64_t(i % 2);
      waits.sends = waits.receives = waits.matched = waits.send_id = 1;
      waits.send_waited = 5'000'000'000;
      peer.shm.cma_refusals = nic.nic.bounce_bytes = 1000;
      put_text(peer.address, std::to_string((i + 1) % 3));
      put_text(peer.path, i < 2 ? "shm" : "nic");
      put_text(waits.sends_for, "match");
    });
}

/// A page that is sound, but says what no provider says.
void forge(Spoiler& spoiler, Copy& copy) {
  constexpr const char* kTexts[] = {"",
                                    "0",
                                    "shm",
                                    "a\"b\\c}",
                                    "\x1b[2J\n",
                                    "room",
                                    "flush",
                                    "RDMA of copies [W602]",
                                    "FI_ERDMA_SHM_EAGER_SIZE=18446744073709551615",
                                    "FI_ERDMA_NIC_EAGER_SIZE=18446744073709551614 FI_ERDMA_=1 =2"};
  const size_t fields = copy.header().fields;
  auto& one = copy.field(spoiler.below(fields));
  const auto other = copy.field(spoiler.below(fields));
  const auto& kind = copy.kind(one.kind);
  std::byte* const block = copy.data() + kind.offset + spoiler.below(kind.used) * kind.block_bytes;
  switch (spoiler.below(6)) {
    case 0:  // two fields of one name, or a text where readers expect a number
      std::memcpy(one.name, other.name, sizeof(one.name));
      break;
    case 1:
      one.type = uint8_t(1 + spoiler.below(2));
      break;
    case 2:
      one.meaning = uint8_t(spoiler.below(4));
      break;
    case 3:
      std::memcpy(copy.kind(spoiler.below(3)).name, kind.name, sizeof(kind.name));
      break;
    default:
      if (one.type == uint8_t(erdma::stat_layout::Type::text))
        erdma::util::put_text({reinterpret_cast<char*>(block) + one.offset, one.bytes},
                              kTexts[spoiler.below(std::size(kTexts))]);
      else if (const uint64_t value = spoiler.odd_number(16); one.bytes == sizeof(value))
        std::memcpy(block + one.offset, &value, sizeof(value));
  }
}

/// Reads a page as that of this process, which has no other.
Process read_here(pid_t pid, const Copy& copy) {
  const int fd = memfd_create(erdma::stat_layout::kFileName, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ck_assert_int_ge(fd, 0);
  ck_assert_int_eq(write(fd, copy.words.data(), copy.size), ssize_t(copy.size));
  ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  Process process = fi_erdma::this_process();
  close(fd);
  ck_assert(process.page.snapshot.has_value() == process.page.fault.empty());
  process.pid = pid;
  return process;
}

Look look_at(Spoiler& spoiler, const Copy& sound, uint64_t steps) {
  Look look{std::chrono::steady_clock::now(), {}, 0};
  for (const pid_t pid : kPids) {
    Copy copy = sound;
    for (uint64_t i = spoiler.below(steps); i > 0; --i) forge(spoiler, copy);
    if (spoiler.below(4) == 0) spoiler.spoil(copy);
    look.processes.push_back(read_here(pid, copy));
  }
  return look;
}

/// Takes what this process prints, as long as it exists.
class Output {
 public:
  Output() {
    std::fflush(stdout);
    x_paper.take_output();
  }
  ~Output() {
    std::fflush(stdout);
    dup2(x_output.get(), STDOUT_FILENO);
    dup2(x_errors.get(), STDERR_FILENO);
  }
  /// What was printed since the last call.
  std::string take() {
    std::fflush(stdout);
    std::string text = x_paper.read();
    x_paper.write("");
    lseek(x_paper.fd(), 0, SEEK_SET);
    return text;
  }

 private:
  const fi_erdma::Descriptor x_output{dup(STDOUT_FILENO)}, x_errors{dup(STDERR_FILENO)};
  const fi_erdma::Paper x_paper;
};

void check_printable(const std::string& text) {
  for (const char c : text) ck_assert(c == '\n' || (c >= 0x20 && c <= 0x7e));
}
void check_printable(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    check_printable(line);
    ck_assert(line.find('\n') == line.npos);
  }
}

void check_blocks(const Json& blocks) {
  ck_assert(blocks.is_array());
  for (const Json& block : blocks) {
    ck_assert(block["index"].is_number_unsigned());
    for (const char* const name : {"counters", "gauges"}) {
      ck_assert(block[name].is_object());
      for (const auto& [counter, value] : block[name].items())
        ck_assert(value.is_number_unsigned() || value.is_null());
    }
  }
}

Json check_json(const Process& process, const Rates& rates) {
  Json json = to_json(process, true);
  if (!process.page.snapshot) {
    ck_assert(json["fault"].is_string());
    return json;
  }
  add_rates(json, process, rates);
  ck_assert(json["process"].is_null() || json["process"].is_object());
  for (const char* const name : {"endpoints", "peers"}) check_blocks(json[name]);
  for (const Json& endpoint : json["endpoints"])
    for (const auto& [counter, rate] : endpoint["rates"].items())
      ck_assert(rate.is_number() || rate.is_null());
  check_printable(json.dump());
  return json;
}

/// All endpoints, as if each had answered.
Endpoints endpoints_of(const Look& look) {
  Endpoints all;
  for (const Process& process : look.processes)
    for (const fi_erdma::Block& endpoint : process.blocks("endpoint"))
      all.emplace(process.pid, endpoint.index);
  return all;
}

/// The collector of node_exporter refuses a whole file in which two rows have the same labels.
void check_prometheus(const Look& look) {
  AskedLook asked;
  asked.look = look;
  asked.asked = asked.answered = {std::begin(kPids), std::end(kPids)};
  asked.endpoints = endpoints_of(look);
  std::istringstream rows(prometheus_text(asked));
  std::set<std::string> seen;
  for (std::string row; std::getline(rows, row);) {
    check_printable(row);
    const std::string labels = row.substr(0, row.rfind(' '));
    ck_assert_msg(row[0] == '#' || seen.insert(labels).second, "twice: %s", labels.c_str());
  }
}

void check_info(const Snapshot& snapshot, Output& output) {
  for (const Json& endpoint : fi_erdma::endpoints_to_json(snapshot)) {
    fi_erdma::print_endpoint(endpoint);
    for (const Json& size : endpoint["sizes"])
      ck_assert(size["to"].is_null() || size["to"].get<uint64_t>() >= size["from"].get<uint64_t>());
  }
  check_printable(output.take());
}

void check_tables(const Look& now, const Rates& rates, Output& output) {
  fi_erdma::History history(false);
  const fi_erdma::StatTable table{true, &history, endpoints_of(now)};
  table.print_by_path(now, rates);
  table.print_by_rank(now, rates);
  table.print_by_peer(now, rates);
  check_printable(output.take());
}

void check_waits(std::vector<Json> documents) {
  for (Json& document : documents)
    for (const char* const kind : {"peers", "endpoints"})
      if (document.contains(kind))
        for (Json& block : document[kind])
          block["stands"] = {
              {"sends", true}, {"receives", true}, {"matched", true}, {"any_receives", true}};
  const fi_erdma::WaitGraph graph(std::move(documents));
  for (const size_t i : graph.circle()) ck_assert_uint_lt(i, graph.size());
  for (const size_t end : graph.ends()) ck_assert(end == fi_erdma::kNobody || end < graph.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    check_printable(graph.name_of(i));
    check_printable(fi_erdma::gaps_of(graph.process(i), graph.name_of(i)));
    for (const fi_erdma::Wait& wait : graph.waits_of(i)) {
      ck_assert(wait.to == fi_erdma::kNobody || wait.to < graph.size());
      check_printable({wait.peer, wait.why});
    }
  }
}

void check_all(const Look& before, const Look& now, Output& output) {
  const Rates rates(&before, now);
  std::vector<Json> documents;
  for (const Process& process : now.processes) {
    documents.push_back(check_json(process, rates));
    if (!process.page.snapshot) continue;
    check_info(*process.page.snapshot, output);
    auto peers = peers_of(*process.page.snapshot);
    for (const auto& endpoint : process.blocks("endpoint"))
      check_printable(costs_of(endpoint, peers[endpoint.index]));
  }
  check_printable(gaps_of(now));
  check_prometheus(now);
  check_tables(now, rates, output);
  check_waits(std::move(documents));
}

Copy provider_page() {
  const auto page = make_provider_page();
  show_blocks(*page);
  return Copy(*page);
}

TEST(a_sound_page_is_rendered_whole) {
  const Copy sound = provider_page();
  Spoiler spoiler(1);
  Look now{std::chrono::steady_clock::now(), {}, 0};
  for (const pid_t pid : kPids) now.processes.push_back(read_here(pid, sound));
  for (const Process& process : now.processes)
    ck_assert_msg(process.page.snapshot.has_value(), "%s", process.page.fault.c_str());
  Output output;
  check_all(now, now, output);
}

TEST(any_page_is_rendered_whole) {
  const Copy sound = provider_page();
  const uint64_t seed = number_from("ERDMA_FUZZ_SEED", uint64_t(time(nullptr)));
  const uint64_t steps = number_from("ERDMA_FUZZ_STEPS", 20000) / 20;
  std::printf("ERDMA_FUZZ_SEED=%llu\n", (unsigned long long)seed);
  Spoiler spoiler(seed);
  Output output;
  Look before = look_at(spoiler, sound, 2);
  for (uint64_t i = 0; i < steps; ++i) {
    Look now = look_at(spoiler, sound, 30);
    check_all(before, now, output);
    before = std::move(now);
  }
}

}  // namespace
