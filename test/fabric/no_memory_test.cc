// Memory runs out at each allocation in turn that the provider makes between fi_fabric and the last
// fi_close, with messages and RMA in between. Each failed operation reports it once, and later
// calls work.
#include <dlfcn.h>
#include <execinfo.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <rdma/fi_rma.h>

#include "fabric/av.h"
#include "fabric/endpoint_statistics.h"
#include "fabric/endpoint_summary.h"
#include "fabric/env.h"
#include "fabric/nic.h"
#include "fabric/rig.h"
#include "fabric/trigger_rig.h"
#include "fake/scarce_memory.h"
#include "transport/simulated_device.h"

namespace {

const void* library_of(const void* address) {
  Dl_info found{};
  return dladdr(address, &found) ? found.dli_fbase : nullptr;
}
bool in_program(const void* address) {
  static const void* const program = library_of(reinterpret_cast<const void*>(library_of));
  return library_of(address) == program;
}
/// True if the provider allocates, also through the C++ library. Allocations of the simulated
/// adapter do not count.
bool by_provider(const void* caller) {
  if (in_program(caller)) return true;
  static const void* const cxx = library_of(dlsym(RTLD_DEFAULT, "_ZSt9terminatev"));
  if (library_of(caller) != cxx) return false;
  std::array<void*, 16> frames;
  const auto end = frames.begin() + backtrace(frames.data(), int(frames.size()));
  const auto at = std::find(frames.begin(), end, caller);
  return end - at > 1 && in_program(at[1]);
}

[[maybe_unused]] const bool g_filtered = (erdma::fake::g_concerns = by_provider, true);

using namespace erdma::test;
using erdma::fake::counted;
using erdma::fake::replenish;
using erdma::fake::run_short;

template <typename Call>
ssize_t expect_no_memory(Call call) {
  return erdma::fake::without_each_allocation(-FI_ENOMEM, call);
}

/// True: the call succeeded. The only error allowed is -FI_ENOMEM.
bool done(const char* call, ssize_t rc) {
  ck_assert_msg(rc == 0 || rc == -FI_ENOMEM, "%s: %s", call, fi_strerror(int(-rc)));
  return rc == 0;
}

template <typename Fid>
struct Owned {
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (made) ck_assert_int_eq(fi_close(&made->fid), 0);
  }
  Fid* operator->() const { return made; }
  Fid* made = nullptr;
};

struct Side {
  Owned<fid_cq> cq;
  Owned<fid_av> av;
  Owned<fid_mr> mr;
  Owned<fid_ep> ep;
  fi_addr_t peer = FI_ADDR_NOTAVAIL;
  std::vector<char> window = std::vector<char>(1 << 20);
};

/// All objects, up to two enabled endpoints that know each other. The destructor closes as many as
/// were made.
class Attempt {
 public:
  static constexpr size_t kMost = 900'000;

  /// `bytes`: the data to send; at least kMost.
  Attempt(fi_info* info, const std::vector<char>& bytes) : x_info(info), x_bytes(bytes) {}

  bool build() {
    if (!done("fi_fabric", provider()->fabric(x_info->fabric_attr, &x_fabric.made, nullptr)))
      return false;
    x_fabric->api_version = FI_VERSION(1, 9);
    if (!done("fi_domain", fi_domain(x_fabric.made, x_info, &x_domain.made, nullptr))) return false;
    return open(x_sides[0]) && open(x_sides[1]) && introduce(x_sides[0], x_sides[1]) &&
           introduce(x_sides[1], x_sides[0]);
  }

  int error() const { return x_error; }
  /// Each operation completes once. True: all succeeded.
  bool use() {
    bool well = true;
    for (const size_t length : {size_t(8), size_t(3000), size_t(100'000), kMost})
      for (const size_t from : {0u, 1u})
        well = message(x_sides[from], x_sides[1 - from], length) && well;
    for (const size_t length : {size_t(8), size_t(3000), size_t(300'000)})
      well = write(x_sides[0], x_sides[1], length) && well;
    return well;
  }

 private:
  bool open(Side& side) {
    fi_cq_attr cq_attr{};
    cq_attr.format = FI_CQ_FORMAT_TAGGED;
    fi_av_attr av_attr{};
    return done("fi_cq_open", fi_cq_open(x_domain.made, &cq_attr, &side.cq.made, nullptr)) &&
           done("fi_av_open", fi_av_open(x_domain.made, &av_attr, &side.av.made, nullptr)) &&
           done("fi_mr_reg",
                fi_mr_reg(x_domain.made, side.window.data(), side.window.size(),
                          FI_REMOTE_WRITE | FI_REMOTE_READ, 0, 0, 0, &side.mr.made, nullptr)) &&
           done("fi_endpoint", fi_endpoint(x_domain.made, x_info, &side.ep.made, nullptr)) &&
           done("fi_ep_bind", fi_ep_bind(side.ep.made, &side.cq->fid, FI_TRANSMIT | FI_RECV)) &&
           done("fi_ep_bind", fi_ep_bind(side.ep.made, &side.av->fid, 0)) &&
           done("fi_enable", fi_enable(side.ep.made));
  }
  bool introduce(Side& side, Side& peer) {
    char name[64];
    size_t length = sizeof(name);
    ck_assert_int_eq(fi_getname(&peer.ep->fid, name, &length), 0);
    const int inserted = fi_av_insert(side.av.made, name, 1, &side.peer, 0, nullptr);
    if (inserted == 1) return true;
    ck_assert_int_le(inserted, 0);
    return done("fi_av_insert", inserted ? inserted : -FI_ENOMEM);
  }

  /// Waits for the completion of the operation with this context, and returns its error or 0. A
  /// receive that could not be cancelled any more may complete before it.
  int end_of(Side& side, Side& other, const fi_context& context) {
    fi_cq_tagged_entry entry;
    fi_cq_err_entry error{};
    for (;;) {
      fi_cq_read(other.cq.made, nullptr, 0);
      const ssize_t rc = fi_cq_read(side.cq.made, &entry, 1);
      if (rc == 1 && entry.op_context == &context) return 0;
      if (rc == -FI_EAVAIL) {
        ck_assert_int_eq(fi_cq_readerr(side.cq.made, &error, 0), 1);
        ck_assert_int_ne(error.err, 0);
        x_error = error.err;
        if (error.op_context == &context) return error.err;
      } else if (rc != 1 && rc != -FI_EAGAIN) {
        ck_abort_msg("fi_cq_read: %s", fi_strerror(int(-rc)));
      }
    }
  }
  /// Repeats a call until it is accepted. A call that failed for lack of memory may be repeated.
  template <typename Call>
  void post(const char* name, Call call) {
    for (;;) {
      const ssize_t rc = counted(call);
      if (rc == 0) return;
      if (rc == -FI_EAGAIN)
        for (Side& side : x_sides) fi_cq_read(side.cq.made, nullptr, 0);
      else
        done(name, rc);
    }
  }

  bool message(Side& from, Side& to, size_t length) {
    std::memset(x_received.data(), 0, x_received.size());
    ++x_tag;  // a message that was reported as failed may still arrive
    fi_context& receive = next_context();
    fi_context& send = next_context();
    post("fi_trecv", [&] {
      return fi_trecv(to.ep.made, x_received.data(), length, nullptr, FI_ADDR_UNSPEC, x_tag, 0,
                      &receive);
    });
    post("fi_tsend", [&] {
      return fi_tsend(from.ep.made, x_bytes.data(), length, nullptr, from.peer, x_tag, &send);
    });
    const int sent = end_of(from, to, send);
    if (sent) {
      if (fi_cancel(&to.ep->fid, &receive) == 0) end_of(to, from, receive);
      return false;
    }
    if (end_of(to, from, receive)) return false;
    ck_assert(std::equal(x_bytes.data(), x_bytes.data() + length, x_received.data()));
    return true;
  }
  bool write(Side& from, Side& to, size_t length) {
    std::memset(to.window.data(), 0, to.window.size());
    fi_context& context = next_context();
    post("fi_write", [&] {
      return fi_write(from.ep.made, x_bytes.data(), length, nullptr, from.peer,
                      reinterpret_cast<uintptr_t>(to.window.data()), fi_mr_key(to.mr.made),
                      &context);
    });
    if (end_of(from, to, context)) return false;
    ck_assert(std::equal(x_bytes.data(), x_bytes.data() + length, to.window.begin()));
    return true;
  }

  /// A context that no operation has used before.
  fi_context& next_context() { return x_contexts.at(x_operations++); }

  fi_info* x_info;
  int x_error = 0;
  size_t x_operations = 0;
  std::vector<fi_context> x_contexts = std::vector<fi_context>(200);
  uint64_t x_tag = 0;
  Owned<fid_fabric> x_fabric;
  Owned<fid_domain> x_domain;
  std::array<Side, 2> x_sides;
  const std::vector<char>& x_bytes;
  std::vector<char> x_received = std::vector<char>(kMost);
};

/// Makes `many` allocations fail, starting with this one. True: at least one did.
bool attempt_without(fi_info* info, const std::vector<char>& bytes, long allocation, long many) {
  Attempt attempt(info, bytes);
  run_short(allocation, many);
  const bool built = counted([&] { return attempt.build(); });
  if (built) attempt.use();
  const bool failed = replenish();
  if (!failed) ck_assert(built);
  // Memory is available again.
  if (built)
    for (int tries = 0; !attempt.use(); ++tries)
      ck_assert_msg(tries < 5, "nothing works after allocation %ld: error %d", allocation,
                    attempt.error());
  return failed;
}

// Less than the stage may take, so that a test that stands still is named.
TEST_CASE(.timeout = 300);

enum Way { via_shm, via_nic, kWays };

void try_each_allocation(int way, long many = 1) {
  leaves_work_undone();
  void* frame;
  backtrace(&frame, 1);  // loads the libraries that backtrace() needs
  g_device = way == via_shm ? "shm" : "erdma_0";
  setenv("FI_ERDMA_SHM", way == via_shm ? "auto" : "off", 1);
  Ask ask;
  ask.caps = FI_TAGGED | FI_RMA;
  ask.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  fi_info* info = get_info(ask);
  // Runs of failing allocations overlap.
  const long step = std::max(many / 3, 1L);
  const std::vector<char> bytes = pattern(Attempt::kMost);
  long allocation = 0;
  while (attempt_without(info, bytes, allocation, many)) allocation += step;
  ck_assert_int_gt(allocation, 50);
  fi_freeinfo(info);
}

TEST(each_call_that_lacks_memory_says_so, kWays) {
  try_each_allocation(_i);
}

/// Allocations fail in calls, in progress and on the provider's threads: one, or several in a row.
TEST(what_lacks_memory_anywhere_goes_on_or_says_so, 2 * kWays) {
  erdma::fake::g_anywhere = true;
  try_each_allocation(_i % kWays, _i < kWays ? 1 : 30);
}

TEST(a_shared_context_without_memory_says_so) {
  g_device = "shm";
  Root root;
  fi_rx_attr attr = *root.info->rx_attr;
  fid_ep* shared = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, &attr, &shared, nullptr), 0);
  char byte = 0;
  const auto receive = [&] {
    return fi_trecv(shared, &byte, 1, nullptr, FI_ADDR_UNSPEC, 7, 0, nullptr);
  };
  ck_assert_int_eq(expect_no_memory(receive), 0);
  ck_assert_int_eq(fi_close(&shared->fid), 0);
}

sockaddr_in numbered_peer(uint16_t port) {
  sockaddr_in peer{};
  peer.sin_family = AF_INET;
  peer.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  peer.sin_port = htons(port);
  return peer;
}

/// Each address that was not inserted has a status, and later addresses can be inserted.
TEST(an_address_vector_without_memory_says_so) {
  g_device = "shm";
  Root root;
  fid_av* const av = root.open_av();
  fi_addr_t address = 4711;
  int status = 0;
  const sockaddr_in peer = numbered_peer(1);
  const uint64_t flags = FI_AV_USER_ID | FI_SYNC_ERR;
  const auto insert = [&]() -> ssize_t {
    address = 4711;
    const int inserted = fi_av_insert(av, &peer, 1, &address, flags, &status);
    return inserted == 0 ? -status : inserted;
  };
  ck_assert_int_eq(expect_no_memory(insert), 1);
  ck_assert_uint_eq(address, 0);  // none of the failures left an entry
  ck_assert_int_eq(fi_close(&av->fid), 0);
  // fi_av_open() refuses FI_AV_USER_ID with headers before libfabric 1.20.
  erdma::util::DomainLock lock(erdma::util::LockKind::mutex);
  const auto as_is = [](const erdma::util::SocketAddress& given) { return given; };
  auto* const named =
      new erdma::fabric::AddressVector({lock, AF_INET, as_is, nullptr}, FI_AV_USER_ID, nullptr);
  ck_assert_int_eq(fi_av_insert(named, &peer, 1, &address, 0, nullptr), 1);
  ck_assert_int_eq(expect_no_memory([&]() -> ssize_t { return named->set_user_id(address, 7, 0); }),
                   0);
  ck_assert_int_eq(fi_close(&named->fid), 0);
}

TEST(an_event_queue_without_memory_says_so) {
  g_device = "shm";
  Root root;
  fid_eq* eq = nullptr;
  fi_eq_attr attr{};
  attr.flags = FI_WRITE;
  ck_assert_int_eq(fi_eq_open(root.fabric, &attr, &eq, nullptr), 0);
  std::vector<char> event = pattern(60'000);
  uint32_t type = 0;
  const auto write = [&] { return fi_eq_write(eq, 7, event.data(), event.size(), 0); };
  ck_assert_int_eq(expect_no_memory(write), 60'000);
  ck_assert_int_eq(fi_eq_read(eq, &type, event.data(), event.size(), 0), 60'000);
  ck_assert_int_eq(fi_eq_read(eq, &type, event.data(), event.size(), 0), -FI_EAGAIN);
  ck_assert_int_eq(fi_close(&eq->fid), 0);
}

/// The first receive that names a source, and the first probe, allocate objects that later ones
/// use.
TEST(a_shared_context_without_memory_for_a_source_says_so) {
  g_device = "shm";
  Ask ask;
  ask.caps = FI_MSG | FI_TAGGED | FI_DIRECTED_RECV;
  Root root(ask);
  fi_rx_attr attr = *root.info->rx_attr;
  fid_ep *shared = nullptr, *ep = nullptr;
  ck_assert_int_eq(fi_srx_context(root.domain, &attr, &shared, nullptr), 0);
  fid_cq* const cq = root.open_cq();
  fid_av* const av = root.open_av();
  const sockaddr_in peer = numbered_peer(1);
  fi_addr_t source = FI_ADDR_NOTAVAIL;
  ck_assert_int_eq(fi_av_insert(av, &peer, 1, &source, 0, nullptr), 1);
  root.info->ep_attr->rx_ctx_cnt = FI_SHARED_CONTEXT;
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &ep, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &av->fid, 0), 0);
  ck_assert_int_eq(fi_ep_bind(ep, &shared->fid, 0), 0);
  ck_assert_int_eq(fi_enable(ep), 0);
  char byte = 0;
  ck_assert_int_eq(
      expect_no_memory([&] { return fi_trecv(shared, &byte, 1, nullptr, source, 7, 0, &byte); }),
      0);
  ck_assert_int_eq(fi_cancel(&shared->fid, &byte), 0);
  for (fid_t object : {&ep->fid, &shared->fid, &cq->fid, &av->fid})
    ck_assert_int_eq(fi_close(object), 0);
}

void open_on(Root& root, Side& side) {
  side.cq.made = root.open_cq(FI_CQ_FORMAT_TAGGED, FI_WAIT_FD);
  side.av.made = root.open_av();
  ck_assert_int_eq(fi_endpoint(root.domain, root.info, &side.ep.made, nullptr), 0);
  ck_assert_int_eq(fi_ep_bind(side.ep.made, &side.cq->fid, FI_TRANSMIT | FI_RECV), 0);
  ck_assert_int_eq(fi_ep_bind(side.ep.made, &side.av->fid, 0), 0);
}

/// Calls nothing that drives an endpoint.
void await_a_completion(fid_fabric* fabric, fid_cq* cq) {
  int fd = -1;
  ck_assert_int_eq(fi_control(&cq->fid, FI_GETWAIT, &fd), 0);
  fid_t object = &cq->fid;
  if (fi_trywait(fabric, &object, 1) == 0) {
    pollfd readable{fd, POLLIN, 0};
    ck_assert_int_eq(poll(&readable, 1, -1), 1);
  }
}

/// The application only waits from the send on until the bytes have arrived.
void send_while_idle(fid_fabric* fabric, Side& from, Side& to) {
  char name[64];
  size_t length = sizeof(name);
  ck_assert_int_eq(fi_getname(&to.ep->fid, name, &length), 0);
  ck_assert_int_eq(fi_av_insert(from.av.made, name, 1, &from.peer, 0, nullptr), 1);
  const std::vector<char> sent = pattern(300'000);
  ck_assert_int_eq(
      fi_trecv(to.ep.made, to.window.data(), sent.size(), nullptr, FI_ADDR_UNSPEC, 7, 0, nullptr),
      0);
  ck_assert_int_eq(fi_tsend(from.ep.made, sent.data(), sent.size(), nullptr, from.peer, 7, nullptr),
                   0);
  await_a_completion(fabric, to.cq.made);
  fi_cq_tagged_entry entry;
  for (fid_cq* cq : {from.cq.made, to.cq.made}) {
    ssize_t rc = -FI_EAGAIN;
    while (rc == -FI_EAGAIN) rc = fi_cq_read(cq, &entry, 1);
    ck_assert_int_eq(rc, 1);
  }
  ck_assert(std::equal(sent.begin(), sent.end(), to.window.begin()));
}

/// An fi_enable that fails for lack of memory has no effect, so the next one enables the endpoint,
/// and the progress thread drives it.
TEST(an_endpoint_that_lacked_memory_to_be_enabled_is_driven_later) {
  g_device = "shm";
  Ask ask;
  ask.progress = FI_PROGRESS_AUTO;
  bool failed = true;
  for (long allocation = 0; failed; ++allocation) {
    Root root(ask);
    Side from, to;
    open_on(root, from);
    open_on(root, to);
    run_short(allocation);
    const int rc = counted([&] { return fi_enable(to.ep.made); });
    failed = replenish();
    ck_assert(failed || allocation > 10);
    if (rc) {
      ck_assert_int_eq(rc, -FI_ENOMEM);
      ck_assert_int_eq(fi_enable(to.ep.made), 0);
    }
    ck_assert_int_eq(fi_enable(from.ep.made), 0);
    send_while_idle(root.fabric, from, to);
  }
}

TEST(a_nic_is_described_although_memory_lacks) {
  erdma::fabric::NicDescription description;
  description.bus.bus_type = FI_BUS_PCI;
  description.bus.attr.pci.bus_id = 0x3b;
  fid_nic* const nic = erdma::fabric::make_nic(description);
  std::array<char, 1000> text{};
  run_short(0, 1000);
  const int rc = counted([&] { return nic->fid.ops->tostr(&nic->fid, text.data(), text.size()); });
  ck_assert(!replenish());
  ck_assert_int_eq(rc, 0);
  ck_assert(std::strstr(text.data(), "bus: PCI 0000:3b:00.0\n"));
  ck_assert_int_eq(fi_close(&nic->fid), 0);
}

// --- counters -----------------------------------------------------------------------------------

enum class Use { of_endpoint, of_region, of_work, kCount };

/// Two endpoints and a region of one domain, and counters that they can use.
struct CounterScene {
  CounterScene() : region(root, bytes.data(), bytes.size()) {
    first.made = open_cntr(root);
    second.made = open_cntr(root);
  }
  ~CounterScene() { fi_control(&root.domain->fid, FI_FLUSH_WORK, nullptr); }

  int use(Use how) {
    if (how == Use::of_endpoint) return fi_ep_bind(a.ep, &first->fid, FI_SEND);
    if (how == Use::of_region) return fi_mr_bind(region.mr, &first->fid, FI_REMOTE_WRITE);
    work.threshold = 1;
    work.triggering_cntr = first.made;
    work.op_type = FI_OP_CNTR_ADD;
    added = {second.made, 1};
    work.op.cntr = &added;
    return fi_control(&root.domain->fid, FI_QUEUE_WORK, &work);
  }
  /// False: there was an allocation of this number, so the call failed.
  bool use_without(Use how, long allocation) {
    run_short(allocation);
    const int rc = counted([&] { return use(how); });
    const bool failed = replenish();
    ck_assert_int_eq(rc, failed ? -FI_ENOMEM : 0);
    return !failed;
  }
  /// Whether a thread that reads the counter drives the endpoint, so that a message which the
  /// endpoint sends to itself arrives.
  bool drives(Port& port) {
    const char sent = 1;
    char received = 0;
    ck_assert_int_eq(
        fi_trecv(port.ep, &received, 1, nullptr, FI_ADDR_UNSPEC, 7, 0, &contexts.at(0)), 0);
    ck_assert_int_eq(fi_tsend(port.ep, &sent, 1, nullptr, port.insert(port), 7, &contexts.at(1)),
                     0);
    for (int reads = 0; reads < 10 && received != sent; ++reads) fi_cntr_read(first.made);
    return received == sent;
  }

  Root root{trigger_ask()};
  Owned<fid_cntr> first, second;
  Port a{root}, b{root};
  std::vector<char> bytes = std::vector<char>(64);
  Region region;
  fi_op_cntr added{};
  fi_deferred_work work{};
  std::array<fi_context, 2> contexts{};
};

/// No object of the domain refers to the counter afterwards.
TEST(a_counter_can_be_closed_after_a_use_that_lacked_memory, int(Use::kCount)) {
  g_device = "shm";
  for (long allocation = 0;; ++allocation) {
    CounterScene scene;
    if (scene.use_without(Use(_i), allocation)) break;
    for (Owned<fid_cntr>* counter : {&scene.first, &scene.second}) {
      ck_assert_int_eq(fi_close(&(*counter)->fid), 0);
      counter->made = nullptr;
    }
    const Port enabled_later(scene.root);
    ck_assert_int_lt(allocation, 100);
  }
}

TEST(a_use_of_a_counter_that_lacked_memory_can_be_repeated, int(Use::kCount)) {
  g_device = "shm";
  bool failed = true;
  for (long allocation = 0; failed; ++allocation) {
    CounterScene scene;
    failed = !scene.use_without(Use(_i), allocation);
    if (failed) ck_assert_int_eq(scene.use(Use(_i)), 0);
    ck_assert(scene.drives(scene.a));
    if (Use(_i) != Use::of_endpoint) ck_assert(scene.drives(scene.b));
    ck_assert(failed || allocation > 1);
  }
}

TEST(an_endpoint_is_shown_as_enabled_without_memory_for_its_facts) {
  using namespace erdma::fabric;
  EndpointStatistics statistics(true);
  const std::vector<ShownSetting> settings = {{"FI_ERDMA_JOB_KEY", std::string(100, 'k'), true}};
  erdma::fake::g_concerns = nullptr;  // also those that the C++ library makes for itself
  run_short(0);
  (void)counted([&] {
    statistics.enabled(EndpointFacts(), settings);
    return 0;
  });
  ck_assert(replenish());
  const auto page = ProcessPage::get();
  const auto& shown = page->block_at<EndpointBlock>(kEndpointKind, 0);
  ck_assert_uint_eq(shown.enabled, 1);
  ck_assert_str_eq(shown.settings, "");
}

SUITE(.run = on_simulated_devices);

}  // namespace
