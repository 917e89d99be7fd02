// What the provider shows of itself, as the reader of the program finds it.
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/endpoint_statistics.h"
#include "fabric/env.h"
#include "fabric/rig.h"
#include "fi_erdma/processes.h"
#include "fi_erdma/question.h"
#include "libcheck.h"
#include "quiet_fork.h"
#include "util/stat_page.h"

using namespace erdma::test;
using erdma::fabric::EndpointStatistics;
using fi_erdma::Block;
using fi_erdma::Snapshot;

namespace {

fi_erdma::ReadResult shown() {
  const pid_t pids[] = {getpid()};
  return fi_erdma::processes(pids)[0].page;
}
Snapshot snapshot() {
  auto page = shown();
  ck_assert_msg(page.snapshot.has_value(), "%s", page.fault.c_str());
  return std::move(*page.snapshot);
}
void check_no_page() {
  const auto page = shown();
  ck_assert(!page.snapshot);
  ck_assert_msg(page.fault.starts_with("it shows no statistics"), "%s", page.fault.c_str());
}
std::vector<Block> blocks(const char* kind) {
  const Snapshot all = snapshot();
  ck_assert_uint_eq(all.kind(kind)->unsettled, 0);
  return all.kind(kind)->blocks;
}
Block block(const char* kind, size_t index) {
  const auto all = blocks(kind);
  ck_assert_uint_lt(index, all.size());
  return all[index];
}
std::string address_of(const Port& port) {
  const auto name = port.name();
  return erdma::util::SocketAddress::from_sockaddr(name.data(), name.size()).to_string().c_str();
}
void check_text(const std::string& text, const char* expected) {
  ck_assert_str_eq(text.c_str(), expected);
}

TEST(a_process_shows_itself_as_long_as_it_has_an_endpoint) {
  Root root;
  check_no_page();
  {
    Port port(root);
    const Snapshot all = snapshot();
    ck_assert_ptr_nonnull(all.process());
    ck_assert_uint_eq(*all.process()->number("pid"), uint64_t(getpid()));
    ck_assert_uint_gt(*all.process()->number("started"), 0);
    ck_assert(!all.process()->text("command").empty());
    const uint32_t version = provider()->version;
    check_text(
        all.process()->text("provider"),
        (std::to_string(FI_MAJOR(version)) + "." + std::to_string(FI_MINOR(version))).c_str());
  }
  check_no_page();
}

TEST(all_endpoints_of_a_process_share_a_page) {
  Root root, other;
  Port a(root), b(other);
  ck_assert_uint_eq(blocks("process").size(), 1);
  ck_assert_uint_eq(blocks("endpoint").size(), 2);
}

TEST(an_endpoint_shows_its_address_its_device_and_its_ways) {
  Root root;
  Port port(root);
  const Block endpoint = block("endpoint", 0);
  ck_assert_uint_eq(*endpoint.number("enabled"), 1);
  const auto name = port.name();
  const auto address = erdma::util::SocketAddress::from_sockaddr(name.data(), name.size());
  check_text(endpoint.text("address"), address.to_string().c_str());
  check_text(endpoint.text("device"), "shm");
  ck_assert(!endpoint.number("speed"));
  check_text(endpoint.text("other_hosts"), "none, there is no NIC");
  check_text(endpoint.text("this_host"), "shared memory, CMA where the kernel permits");
}

TEST(an_endpoint_that_is_not_enabled_says_so) {
  Root root;
  fid_ep* ep = nullptr;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  const Block endpoint = block("endpoint", 0);
  ck_assert_uint_eq(*endpoint.number("enabled"), 0);
  check_text(endpoint.text("address"), "");
  ck_assert_int_eq(fi_close(&ep->fid), 0);
}

TEST(settings_are_shown_with_those_that_were_changed_and_without_the_key) {
  provider();
  setenv("FI_ERDMA_CMA", "off", 1);
  setenv("FI_ERDMA_TX_SIZE", "64", 1);
  setenv("FI_ERDMA_RX_SIZE", "1024", 1);  // the default
  setenv("FI_ERDMA_JOB_KEY", "secret", 1);
  Root root;
  Port port(root);
  const Block endpoint = block("endpoint", 0);
  check_text(endpoint.text("changed"),
             "FI_ERDMA_DEVICE,FI_ERDMA_CMA,FI_ERDMA_TX_SIZE,FI_ERDMA_JOB_KEY");
  const std::string settings = " " + endpoint.text("settings") + " ";
  for (const char* const setting :
       {" FI_ERDMA_DEVICE=shm ", " FI_ERDMA_CMA=off ", " FI_ERDMA_TX_SIZE=64 ",
        " FI_ERDMA_RX_SIZE=1024 ", " FI_ERDMA_SHM=auto ", " FI_ERDMA_CONNECT_TIMEOUT=default ",
        " FI_ERDMA_JOB_KEY=(not shown) ", " FI_ERDMA_STAT=auto "})
    ck_assert_msg(settings.find(setting) != settings.npos, "%s: %s", setting, settings.c_str());
  ck_assert(settings.find("secret") == settings.npos);
}

TEST(a_peer_is_shown_with_its_way_from_its_first_use_to_the_end_of_the_endpoint) {
  Root root;
  Port a(root);
  {
    Port b(root);
    const fi_addr_t to_a = b.insert(a), to_b = b.insert(b);
    ck_assert_uint_eq(blocks("peer").size(), 0);
    exchange(b, a, to_a, 8);
    ck_assert_uint_ge(blocks("peer").size(), 1);
    exchange(b, b, to_b, 8);
    int by_shm = 0, by_self = 0;
    for (const Block& peer : blocks("peer")) {
      if (*peer.number("endpoint") != 1) continue;
      by_shm += peer.text("path") == "shm";
      by_self += peer.text("path") == "self";
      ck_assert(!peer.text("address").empty());
    }
    ck_assert_int_eq(by_shm, 1);
    ck_assert_int_eq(by_self, 1);
  }
  for (const Block& peer : blocks("peer")) ck_assert_uint_eq(*peer.number("endpoint"), 0);
}

/// Asks this process, and polls until the endpoints have answered.
void ask(std::initializer_list<Port*> ports) {
  const pid_t self[] = {getpid()};
  const auto before = fi_erdma::processes(self);
  const fi_erdma::Question question(before);
  std::optional<fi_erdma::Question> again;
  ck_assert(question.asked(before[0]));
  auto now = before;
  ck_assert(!question.answered(now[0]));
  const auto answers = [](const fi_erdma::Process& process) {
    std::vector<uint64_t> all;
    for (const Block& endpoint : process.page.snapshot->kind("endpoint")->blocks)
      all.push_back(endpoint.number("answers").value());
    return all;
  };
  const auto all_more = [&] {
    const auto from = answers(before[0]), to = answers(now[0]);
    for (size_t i = 0; i < from.size(); ++i)
      if (to[i] == from[i]) return false;
    return true;
  };
  // Others who look at the processes of this user may have taken the question back.
  for (; !all_more(); now = fi_erdma::processes(self), again.emplace(now))
    for (Port* const port : ports) ck_assert_int_le(fi_cq_read(port->cq, nullptr, 0), 0);
  ck_assert(question.answered(now[0]));
}

TEST(a_peer_that_does_not_talk_has_a_block_while_something_waits_for_it) {
  Root root;
  Port a(root), b(root);
  const fi_addr_t to_b = a.insert(b);
  ask({&a, &b});
  ck_assert_uint_eq(blocks("peer").size(), 0);
  char byte;
  fi_context context;
  ck_assert_int_eq(fi_trecv(a.ep, &byte, 1, nullptr, to_b, 5, 2, &context), 0);
  ck_assert_uint_eq(blocks("peer").size(), 0);  // nobody asked
  ask({&a, &b});
  ck_assert_uint_eq(blocks("peer").size(), 1);
  const Block peer = block("peer", 0);
  ck_assert_uint_eq(*peer.number("receives"), 1);
  ck_assert_uint_gt(*peer.number("receive_id"), 0);
  ck_assert_uint_eq(*peer.number("receive_bytes"), 1);
  ck_assert_uint_eq(*peer.number("receive_tag"), 5);
  ck_assert_uint_eq(*peer.number("receive_ignore"), 2);
  check_text(peer.text("address"), address_of(b).c_str());
  ck_assert_int_eq(fi_cancel(&a.ep->fid, &context), 0);
  ask({&a, &b});
  ck_assert_uint_eq(blocks("peer").size(), 0);
}

TEST(receives_from_any_source_are_those_of_the_endpoint) {
  Root root;
  Port a(root);
  char byte;
  fi_context contexts[2];
  for (const uint64_t tag : {7u, 8u})
    ck_assert_int_eq(fi_trecv(a.ep, &byte, 1, nullptr, FI_ADDR_UNSPEC, tag, 0, &contexts[tag - 7]),
                     0);
  ask({&a});
  const Block endpoint = block("endpoint", 0);
  ck_assert_uint_eq(*endpoint.number("any_receives"), 2);
  ck_assert_uint_eq(*endpoint.number("any_receive_tag"), 7);
  ck_assert_uint_gt(*endpoint.number("answered"), 0);
}

TEST(a_process_that_is_not_the_one_is_not_asked) {
  Root root;
  Port port(root);
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    (void)!write(ends[1], "", 1);
    pause();
    _exit(0);
  }
  char byte;
  ck_assert_int_eq(read(ends[0], &byte, 1), 1);  // it has left fork(), which closes the pipe
  for (const int end : ends) close(end);
  // It has the page of its parent, and another pipe, or none, behind the number.
  fi_erdma::Process process{child, 'S', shown(), 0};
  ck_assert(!fi_erdma::Question({&process, 1}).asked(process));
  kill(child, SIGKILL);
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
}

/// The answers of the endpoints of this process in a look, of those that have a number.
fi_erdma::Process with_answers(std::vector<std::optional<uint64_t>> answers) {
  fi_erdma::Process process{getpid(), 'S', shown(), 0};
  for (fi_erdma::BlockKind& kind : process.page.snapshot->kinds) {
    if (kind.name != "endpoint") continue;
    ck_assert_uint_eq(kind.blocks.size(), answers.size());
    for (size_t i = answers.size(); i-- > 0;)
      if (answers[i])
        kind.blocks[i].numbers["answers"] = *answers[i];
      else
        kind.blocks.erase(kind.blocks.begin() + ptrdiff_t(i));
  }
  return process;
}

TEST(an_endpoint_that_is_closed_takes_no_answer_of_another_away) {
  Root root;
  Port a(root), b(root), c(root);
  const fi_erdma::Process before = with_answers({5, 100, std::nullopt});
  const fi_erdma::Question question({&before, 1});
  ck_assert(question.asked(before));
  ck_assert(!question.answered(before));
  ck_assert(!question.changed(before));
  const fi_erdma::Process closed = with_answers({5, std::nullopt, std::nullopt});
  ck_assert(!question.answered(closed));
  // To close it the process called libfabric, so it cannot be called idle.
  ck_assert(question.changed(closed));
  const fi_erdma::Process one = with_answers({6, std::nullopt, std::nullopt});
  ck_assert(question.answered(one) && !question.changed(one));
  // An endpoint that was opened since.
  const fi_erdma::Process opened = with_answers({5, 100, 0});
  ck_assert(!question.answered(opened) && question.changed(opened));
  ck_assert(question.answered(with_answers({5, std::nullopt, 1})));
}

// To open and to close it the process called libfabric.
TEST(an_endpoint_that_is_opened_and_closed_between_two_looks_is_noticed) {
  Root root;
  Port a(root);
  const fi_erdma::Process before = with_answers({5});
  const fi_erdma::Question question({&before, 1});
  ck_assert(!question.changed(with_answers({5})));
  { Port b(root); }
  const fi_erdma::Process after = with_answers({5});
  ck_assert(!question.answered(after) && question.changed(after));
}

// Its count before the question is not known.
TEST(an_endpoint_that_could_not_be_read_at_the_question_does_not_answer_it) {
  Root root;
  Port a(root), b(root);
  fi_erdma::Process before = with_answers({5, std::nullopt});
  for (fi_erdma::BlockKind& kind : before.page.snapshot->kinds)
    kind.unsettled = kind.name == "endpoint";
  const fi_erdma::Question question({&before, 1});
  const fi_erdma::Process now = with_answers({5, 100});
  ck_assert(!question.answered(now) && question.changed(now));
  ck_assert(question.answered(with_answers({6, 100})));
}

/// Whether a child is asked whose page names its descriptor `fd`.
bool is_asked_by(int fd) {
  namespace layout = erdma::stat_layout;
  constexpr erdma::util::StatKind kKinds[] = {{"process", 64, 1}};
  constexpr erdma::util::StatField kFields[] = {
      {"question_fd", 0, layout::Type::number, layout::Meaning::fact, "", 8, 8},
      {"question_inode", 0, layout::Type::number, layout::Meaning::fact, "", 16, 8}};
  struct stat status {};
  ck_assert_int_eq(fstat(fd, &status), 0);
  auto page = erdma::util::StatPage::create(kKinds, kFields);
  ck_assert(bool(page));
  std::byte* const block = (*page)->take(0);
  const uint64_t numbers[] = {uint64_t(fd), status.st_ino};
  std::memcpy(block + 8, numbers, sizeof(numbers));
  erdma::util::StatPage::end_change(block);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const fi_erdma::Process process{child, 'S', fi_erdma::read_page((*page)->bytes()), 0};
  const bool asked = fi_erdma::Question({&process, 1}).asked(process);
  kill(child, SIGKILL);
  ck_assert_int_eq(waitpid(child, nullptr, 0), child);
  return asked;
}

// Whatever a question is put to loses its bytes.
TEST(a_pipe_with_a_name_is_not_asked_and_keeps_its_bytes) {
  char folder[] = "/tmp/erdma-fifo.XXXXXX";
  ck_assert_ptr_nonnull(mkdtemp(folder));
  const std::string path = std::string(folder) + "/fifo";
  ck_assert_int_eq(mkfifo(path.c_str(), 0600), 0);
  const int fifo = open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  unlink(path.c_str());
  rmdir(folder);
  ck_assert_int_ge(fifo, 0);
  ck_assert_int_eq(write(fifo, "kept", 4), 4);
  int ends[2];
  ck_assert_int_eq(pipe(ends), 0);
  ck_assert(is_asked_by(ends[0]));
  ck_assert(!is_asked_by(fifo));
  char bytes[8] = "";
  ck_assert_int_eq(read(fifo, bytes, sizeof(bytes)), 4);
  ck_assert_str_eq(bytes, "kept");
  for (const int fd : {fifo, ends[0], ends[1]}) close(fd);
}

TEST(a_page_can_be_switched_off) {
  provider();
  setenv("FI_ERDMA_STAT", "off", 1);
  Root root;
  Port port(root);
  exchange(port, port, port.insert(port), 8);
  check_no_page();
}

TEST(a_forked_child_shows_a_page_of_its_own) {
  Root root;
  Port port(root);
  const pid_t child = quiet_fork();
  if (child == 0) {
    check_no_page();
    const EndpointStatistics own(true);
    const Snapshot all = snapshot();
    _exit(*all.process()->number("pid") == uint64_t(getpid()) ? 0 : 1);
  }
  int status;
  ck_assert_int_eq(waitpid(child, &status, 0), child);
  ck_assert(WIFEXITED(status));
  ck_assert_int_eq(WEXITSTATUS(status), 0);
  ck_assert_uint_eq(blocks("endpoint").size(), 1);
}

// --- counters -----------------------------------------------------------------------------------

TEST(endpoints_can_count_with_a_page_and_without, 2) {
  const bool wanted = _i == 1;
  EndpointStatistics statistics(wanted);
  ck_assert_uint_eq(shown().snapshot.has_value(), wanted);
  ck_assert_uint_eq(statistics.shm_counters().ring_bytes, 0);
  ck_assert_uint_eq(statistics.nic_counters().reclaimed, 0);
  statistics.shm_counters().ring_bytes = 1;
  statistics.nic_counters().reclaimed = 2;
  EndpointStatistics other(wanted);  // what one counts is not the other's
  ck_assert_uint_eq(other.shm_counters().ring_bytes, 0);
  ck_assert_uint_eq(other.nic_counters().reclaimed, 0);
}

TEST(each_counter_is_shown_under_its_name) {
  EndpointStatistics statistics(true);
  auto& shm = statistics.shm_counters();
  auto& nic = statistics.nic_counters();
  shm = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  nic = {11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22};
  statistics.gpu_counters() = {23, 24, 25, 26};
  const Block endpoint = block("endpoint", 0);
  uint64_t expected = 0;
  for (const char* const name : {"shm_ring_bytes",
                                 "shm_cma_read_bytes",
                                 "shm_cma_write_bytes",
                                 "shm_copied_in_bytes",
                                 "shm_copied_out_bytes",
                                 "shm_cma_refusals",
                                 "shm_byte_ring_bytes",
                                 "shm_region_bytes",
                                 "shm_connects",
                                 "shm_waits",
                                 "nic_packet_bytes",
                                 "nic_read_bytes",
                                 "nic_write_bytes",
                                 "nic_copied_bytes",
                                 "nic_connects",
                                 "nic_reclaimed",
                                 "nic_fetched_bytes",
                                 "nic_waits",
                                 "nic_refused_always_bytes",
                                 "nic_refused_short_bytes",
                                 "nic_refused_room_bytes",
                                 "nic_refused_memory_bytes",
                                 "gpu_direct_bytes",
                                 "gpu_staged_bytes",
                                 "gpu_ipc_bytes",
                                 "gpu_flushes"})
    ck_assert_msg(endpoint.number(name) == ++expected, "%s", name);
}

erdma::util::SocketAddress peer_address(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(0xC0000201);
  return erdma::util::SocketAddress::from_sockaddr(&address, sizeof(address));
}

TEST(what_belongs_to_a_peer_is_shown_of_it_and_of_the_endpoint) {
  const EndpointStatistics stays(true);
  {
    EndpointStatistics statistics(true);
    statistics.shm_counters().ring_bytes = 1;
    statistics.shm_counters_of(peer_address(1)).ring_bytes = 10;
    statistics.shm_counters_of(peer_address(2)).ring_bytes = 100;
    statistics.nic_counters_of(peer_address(2)).read_bytes = 1000;
    statistics.gpu_counters_of(peer_address(1)).flushes = 5;
    ck_assert_ptr_eq(&statistics.shm_counters_of(peer_address(1)),
                     &statistics.shm_counters_of(peer_address(1)));
    const auto peers = blocks("peer");
    ck_assert_uint_eq(peers.size(), 2);
    for (const Block& peer : peers) {
      const bool first = peer.text("address") == peer_address(1).to_string().c_str();
      ck_assert_uint_eq(peer.number("shm_ring_bytes").value(), first ? 10 : 100);
      ck_assert_uint_eq(peer.number("nic_read_bytes").value(), first ? 0 : 1000);
      ck_assert_uint_eq(peer.number("gpu_flushes").value(), first ? 5 : 0);
      ck_assert(peer.text("path") == "shm");  // as long as nothing is sent there
    }
    const Block endpoint = block("endpoint", 1);
    ck_assert_uint_eq(endpoint.number("shm_ring_bytes").value(), 111);
    ck_assert_uint_eq(endpoint.number("nic_read_bytes").value(), 1000);
    ck_assert_uint_eq(statistics.all_shm_counters().ring_bytes, 111);
    ck_assert_uint_eq(statistics.all_nic_counters().read_bytes, 1000);
  }
  ck_assert_uint_eq(snapshot().process()->number("shm_ring_bytes").value(), 111);
  ck_assert_uint_eq(snapshot().process()->number("nic_read_bytes").value(), 1000);
  ck_assert_uint_eq(snapshot().process()->number("gpu_flushes").value(), 5);
  ck_assert_uint_eq(block("endpoint", 0).number("shm_ring_bytes").value(), 0);
}

// Each rank of two nodes with 256 processors talks to all others.
TEST(all_pages_of_a_large_node_can_be_read) {
  constexpr size_t kPeersOfNode = size_t(256) * 511;
  EndpointStatistics statistics(true);
  const size_t without = shown().cost;
  ++statistics.shm_counters_of(peer_address(1)).ring_bytes;
  const size_t of_peer = shown().cost - without;
  ck_assert_uint_ge(of_peer, 256);
  ck_assert_uint_le(of_peer * kPeersOfNode, fi_erdma::kMostCostOfAll);
}

TEST(without_a_page_peers_count_with_their_endpoint) {
  EndpointStatistics statistics(false);
  ck_assert_ptr_eq(&statistics.shm_counters_of(peer_address(1)), &statistics.shm_counters());
  ck_assert_ptr_eq(&statistics.nic_counters_of(peer_address(1)), &statistics.nic_counters());
  ck_assert_ptr_eq(&statistics.gpu_counters_of(peer_address(1)), &statistics.gpu_counters());
}

/// What the client counted itself, to the byte, whatever way it went.
uint64_t moved(const Block& block) {
  uint64_t bytes = 0;
  for (const char* const name : {"shm_ring_bytes", "shm_cma_read_bytes", "shm_copied_in_bytes"})
    bytes += block.number(name).value();
  return bytes;
}

// Counters of peers are in the blocks of their endpoints when a page has been read, and in their
// own.
TEST(the_counters_of_a_process_have_each_byte_once) {
  Root root;
  Port a(root), b(root);
  exchange(a, b, a.insert(b), 8);
  {
    Port closed(root);
    exchange(closed, b, closed.insert(b), 80);
  }
  ck_assert_uint_ge(blocks("peer").size(), 1);
  const auto counted = fi_erdma::counters_of(fi_erdma::this_process());
  ck_assert_uint_eq(counted.at("shm_ring_bytes"), 88);
  ck_assert_uint_eq(fi_erdma::counters_of({getpid(), 'S', {std::nullopt, "", 0}, 0}).size(), 0);
}

TEST(an_endpoint_for_which_there_was_no_block_counts_for_its_process) {
  constexpr size_t kMost = 256;
  std::vector<std::unique_ptr<EndpointStatistics>> shown;
  for (size_t i = 0; i < kMost; ++i) shown.push_back(std::make_unique<EndpointStatistics>(true));
  ck_assert(shown.back()->shows());
  {
    EndpointStatistics more(true);
    ck_assert(!more.shows());
    more.shm_counters().ring_bytes = 7;
    ck_assert_uint_eq(*snapshot().process()->number("hidden_endpoints"), 1);
    ck_assert_uint_eq(*snapshot().process()->number("left_out"), 1);
  }
  const Snapshot all = snapshot();
  ck_assert_uint_eq(*all.process()->number("shm_ring_bytes"), 7);
  ck_assert_uint_eq(*all.process()->number("hidden_endpoints"), 0);
  ck_assert_uint_eq(*all.process()->number("left_out"), 1);
}

TEST(a_peer_for_which_there_was_no_block_is_counted_once_and_counts_for_its_endpoint) {
  constexpr uint16_t kMost = 16384;
  EndpointStatistics statistics(true);
  for (uint16_t i = 1; i <= kMost; ++i) (void)statistics.shm_counters_of(peer_address(i));
  ck_assert_uint_eq(*snapshot().process()->number("left_out"), 0);
  for (int i = 0; i < 2; ++i) {
    ck_assert_ptr_eq(&statistics.shm_counters_of(peer_address(kMost + 1)),
                     &statistics.shm_counters());
    statistics.leads(peer_address(kMost + 1), "shm");
  }
  ck_assert_uint_eq(*snapshot().process()->number("left_out"), 1);
}

// Whoever adds up the blocks of endpoints and of the process would count bytes twice, or not at
// all.
TEST(a_reader_sees_that_counts_move_from_one_block_to_another) {
  const EndpointStatistics shown_endpoint(true);
  const auto page = erdma::fabric::ProcessPage::get();
  const auto moving = [] { return snapshot().kind("process")->unsettled; };
  ck_assert_uint_eq(moving(), 0);
  page->begin_move();
  page->begin_move();
  ck_assert_uint_eq(moving(), 1);
  page->end_move();
  ck_assert_uint_eq(moving(), 1);
  page->end_move();
  ck_assert_uint_eq(moving(), 0);
}

TEST(bytes_of_closed_endpoints_remain_those_of_the_process) {
  Root root;
  Port stays(root);
  constexpr size_t kSizes[] = {1, 8, 88};  // longer ones may be announced first
  uint64_t sent = 0;
  for (int i = 1; i <= 2; ++i) {
    {
      Port goes(root);
      const fi_addr_t to = goes.insert(stays);
      for (const size_t size : kSizes) {
        exchange(goes, stays, to, size);
        sent += size;
        ck_assert_uint_eq(moved(*snapshot().process()) + moved(block("endpoint", 1)), sent);
      }
    }
    ck_assert_uint_eq(moved(*snapshot().process()), sent);
    ck_assert_uint_eq(moved(block("endpoint", 0)), 0);
  }
}

}  // namespace
