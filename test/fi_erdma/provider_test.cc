// What the provider shows of itself, as the reader of the program finds it.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "fabric/endpoint_statistics.h"
#include "fabric/env.h"
#include "fabric/job_identity.h"
#include "fabric/rig.h"
#include "fi_erdma/processes.h"
#include "libcheck.h"

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
    check_text(all.process()->text("provider"), "0.1");
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
  const Block endpoint = blocks("endpoint")[0];
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
  const Block endpoint = blocks("endpoint")[0];
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
  const Block endpoint = blocks("endpoint")[0];
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
  const pid_t child = fork();
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
  shm = {1, 2, 3, 4, 5, 6};
  nic = {7, 8, 9, 10, 11, 12};
  const Block endpoint = blocks("endpoint")[0];
  uint64_t expected = 0;
  for (const char* const name :
       {"shm_ring_bytes", "shm_cma_read_bytes", "shm_cma_write_bytes", "shm_copied_in_bytes",
        "shm_copied_out_bytes", "shm_cma_refusals", "nic_packet_bytes", "nic_read_bytes",
        "nic_write_bytes", "nic_copied_bytes", "nic_connects", "nic_reclaimed"})
    ck_assert_msg(endpoint.number(name) == ++expected, "%s", name);
}

/// What the client counted itself, to the byte, whatever way it went.
uint64_t moved(const Block& block) {
  uint64_t bytes = 0;
  for (const char* const name : {"shm_ring_bytes", "shm_cma_read_bytes", "shm_copied_in_bytes"})
    bytes += block.number(name).value();
  return bytes;
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
        ck_assert_uint_eq(moved(*snapshot().process()) + moved(blocks("endpoint")[1]), sent);
      }
    }
    ck_assert_uint_eq(moved(*snapshot().process()), sent);
    ck_assert_uint_eq(moved(blocks("endpoint")[0]), 0);
  }
}

// --- who started it -----------------------------------------------------------------------------

struct IdentityCase {
  std::vector<std::pair<const char*, const char*>> variables;
  const char* launcher;
  uint64_t rank, ranks, local_rank;
  const char* job;
};

constexpr uint64_t kNone = UINT64_MAX;
const IdentityCase kIdentities[] = {
    {{}, "", kNone, kNone, kNone, ""},
    {{{"OMPI_COMM_WORLD_RANK", "3"},
      {"OMPI_COMM_WORLD_SIZE", "16"},
      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
      {"PMIX_RANK", "3"},
      {"PMIX_NAMESPACE", "4242.1"}},
     "openmpi",
     3,
     16,
     1,
     "4242.1"},
    {{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}}, "mpich", 2, 4, 0, ""},
    {{{"PMIX_RANK", "7"}, {"PMIX_NAMESPACE", "job"}}, "pmix", 7, kNone, kNone, "job"},
    {{{"SLURM_PROCID", "5"},
      {"SLURM_NTASKS", "8"},
      {"SLURM_LOCALID", "2"},
      {"SLURM_JOB_ID", "88121"}},
     "slurm",
     5,
     8,
     2,
     "88121"},
    // What mpirun starts in the script of a Slurm job inherits the script's rank.
    {{{"SLURM_PROCID", "0"},
      {"SLURM_JOB_ID", "88121"},
      {"OMPI_COMM_WORLD_RANK", "9"},
      {"PMIX_NAMESPACE", "4242.1"}},
     "openmpi",
     9,
     kNone,
     kNone,
     "88121"},
    {{{"TORCHELASTIC_RUN_ID", "run"},
      {"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"SLURM_PROCID", "0"}},
     "torchrun",
     1,
     2,
     1,
     "run"},
    {{{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "", kNone, kNone, kNone, ""},
    {{{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "4x"}},
     "openmpi",
     kNone,
     kNone,
     kNone,
     ""},
};

TEST(rank_and_job_are_those_that_the_launcher_tells, std::size(kIdentities)) {
  for (const IdentityCase& c : kIdentities)
    for (const auto& [name, value] : c.variables) unsetenv(name);
  const IdentityCase& c = kIdentities[_i];
  for (const auto& [name, value] : c.variables) setenv(name, value, 1);
  const auto identity = erdma::fabric::read_job_identity();
  check_text(identity.launcher, c.launcher);
  ck_assert_uint_eq(identity.rank, c.rank);
  ck_assert_uint_eq(identity.ranks, c.ranks);
  ck_assert_uint_eq(identity.local_rank, c.local_rank);
  check_text(identity.job, c.job);
  const EndpointStatistics statistics(true);
  const Snapshot all = snapshot();
  ck_assert_uint_eq(all.process()->number("rank").value_or(kNone), c.rank);
  check_text(all.process()->text("job"), c.job);
}

}  // namespace
