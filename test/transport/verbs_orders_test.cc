#include <dlfcn.h>
#include <execinfo.h>
#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/providers/fi_log.h>

#include "fake/scarce_memory.h"
#include "hmem/cuda.h"
#include "transport/conformance.h"
#include "transport/simulated_device.h"
#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/gpu_registrations.h"
#include "transport/verbs/verbs_transport.h"
#include "transport/verbs_orders_refusals.h"
#include "transport/verbs_orders_transfers.h"

/// Endpoints with their real connectors on the simulated adapter, without threads of their own. The
/// order and the times at which each polls, sends, and connects are random. Meanwhile an allocation
/// fails, a call of the adapter is refused, or a connection breaks.
/// - A message that send() took arrives once and in order. Otherwise one side hears that its link
///   is down, and a warning is logged.
/// - A transfer that get() or put() took ends once, and its bytes are there: those of a read at
///   once, those of a write ahead of later packets.
/// - Transfers use memory that is shared for them and registered regions, in each way, with host
///   memory and with memory of a simulated GPU.

extern "C" int fi_log_enabled(const fi_provider*, fi_log_level level, fi_log_subsys subsystem) {
  erdma::fake::g_told += level == FI_LOG_WARN && subsystem == FI_LOG_EP_DATA;
  static const bool shown = std::getenv("ERDMA_MODEL_LOG");
  return shown;
}
extern "C" void fi_log(const fi_provider*, fi_log_level, fi_log_subsys, const char*, int,
                       const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vprintf(format, arguments);
  va_end(arguments);
}

namespace erdma::test {
namespace {

using transport::SendHint;
using transport::verbs::Device;
using transport::verbs::GpuMemoryRegistrar;
using transport::verbs::GpuRegistrations;
using transport::verbs::Options;
using transport::verbs::RegistrationCache;
using transport::verbs::VerbsTransport;

constexpr uint64_t kMessages = 30;
constexpr uint64_t kTransfers = 4;
constexpr size_t kNodes = 4;

/// The system's clock plus the time that was skipped.
struct SkippingClock final : util::Clock {
  uint64_t now() const noexcept override { return util::SystemClock().now() + skipped; }
  uint64_t skipped = 0;
};

size_t length_of(uint64_t number) {
  constexpr size_t kLengths[] = {0, 8, 40, 200, 900};
  return kLengths[number % std::size(kLengths)];
}

/// The messages of one endpoint to another.
struct Flow {
  bool over() const { return expected >= kMessages; }
  /// A lost message is not sent again, but a message must follow it.
  bool has_more() const { return sent < kMessages || (!over() && ends > ends_at_last); }

  uint64_t sent = 0;
  uint64_t expected = 0;  ///< number of the next message
  uint64_t lost = 0;
  uint64_t lost_untold = 0;
  uint64_t senders_end = 0;    ///< `sent` when the sender's link last went down
  bool receivers_end = false;  ///< the receiver's link went down after the last message
  unsigned ends = 0, ends_at_last = 0;
  bool in_order = true, whole = true;
};

struct Adapter {
  std::unique_ptr<Device> device;
  std::unique_ptr<GpuMemoryRegistrar> gpu_registrar;
  GpuRegistrations* gpu;  ///< points to the cache
  std::unique_ptr<RegistrationCache> cache;
};

/// GPU memory at either end of the transfers between two endpoints. All runs of a test use it.
std::unique_ptr<DeviceMemory> g_gpu_memory[kNodes][kNodes][2];

class Drawn;

struct FlowSink final : transport::Sink {
  void on_packet(transport::Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) override;
  void on_done(uint64_t token, int status) noexcept override;
  void on_link_down(transport::Link& link, int status) noexcept override;
  bool waits_for(const transport::Link&) noexcept override { return true; }
  Drawn* world = nullptr;
  size_t self = 0;
};

class Drawn {
 public:
  Drawn(uint64_t seed, std::vector<Adapter>& adapters, size_t count, const Options& options)
      : x_random(seed), x_count(count), x_adapters(adapters) {
    for (size_t i = 0; i < count; ++i) {
      auto opened = VerbsTransport::open(options, *adapters[i].device, *adapters[i].cache,
                                         adapters[i].device->address(), &clock);
      ck_assert_int_eq(opened.error(), 0);
      names[i] = (*opened)->name();
      x_transports[i] = std::move(*opened);
      x_sinks[i].world = this;
      x_sinks[i].self = i;
    }
    // If there are more than two endpoints, the first exchanges messages with all others.
    for (size_t i = 1; i < count; ++i) x_pairs.insert(x_pairs.end(), {{0, i}, {i, 0}});
    for (const auto& [from, to] : x_pairs) {
      moving[from][to].gpu_here = g_gpu_memory[from][to][0].get();
      moving[from][to].gpu_there = g_gpu_memory[from][to][1].get();
    }
  }
  ~Drawn() {
    for (const auto& [from, to] : x_pairs) moving[from][to].give_back();
    for (size_t i = 0; i < x_count; ++i) x_transports[i]->shutdown();
    answer_all();
  }

  /// Runs until all is over, or for `most_steps` steps. Returns false if it takes too long.
  bool run(unsigned most_steps = UINT_MAX) {
    const util::SystemClock system;
    const uint64_t end = system.now() + 240'000'000'000;
    uint64_t moved_at = system.now(), jump = 1'000'000;
    for (unsigned steps = 0; !over() && steps < most_steps; ++steps) {
      if (step()) {
        moved_at = system.now();
        jump = 1'000'000;
      } else if (steps % 16 == 0) {
        sched_yield();
        const uint64_t now = system.now();
        if (now > end) return false;
        // Nothing is under way except time limits.
        if (now - moved_at < 2'000'000) continue;
        ::poll(nullptr, 0, 1);
        clock.skipped += jump;
        jump = std::min<uint64_t>(2 * jump, 100'000'000'000);
        moved_at = system.now();
      }
    }
    return true;
  }
  size_t index_of(const util::SocketAddress& name) const {
    return size_t(std::find(names, names + x_count, name) - names);
  }
  template <typename Function>
  void for_each(Function&& function) {
    for (const auto& [from, to] : x_pairs) function(flows[from][to]);
  }
  bool over() const {
    return std::all_of(x_pairs.begin(), x_pairs.end(), [&](const auto& pair) {
      return flows[pair.first][pair.second].over() && !moving[pair.first][pair.second].under_way;
    });
  }
  std::string text() const {
    std::string all;
    for (const auto& [from, to] : x_pairs) {
      const Flow& flow = flows[from][to];
      all += std::to_string(from) + "->" + std::to_string(to) + ": " + std::to_string(flow.sent) +
             " sent, " + std::to_string(flow.expected) + " expected, " + std::to_string(flow.lost) +
             " lost, of these untold " + std::to_string(flow.lost_untold) + ", " +
             std::to_string(flow.ends) + " ends" + (flow.in_order ? "" : ", NOT IN ORDER") +
             (flow.whole ? "" : ", WRONG BYTES") + ", " + std::to_string(moving[from][to].begun) +
             " transfers, the last by way " + std::to_string(int(moving[from][to].way)) +
             (moving[from][to].reads ? ", a read" : "") +
             (moving[from][to].honest ? "" : ", NOT HONEST") +
             (moving[from][to].under_way ? ", UNDER WAY" : "") + "; ";
    }
    return all;
  }

  SkippingClock clock;
  util::SocketAddress names[kNodes];
  Flow flows[kNodes][kNodes];
  Moving moving[kNodes][kNodes];

 private:
  /// An endpoint that ends waits for the answers to its connects. Its peers would have to answer on
  /// this thread while it waits, so they answer before.
  void answer_all() {
    for (bool waiting = true; waiting; sched_yield()) {
      waiting = false;
      for (size_t i = 0; i < x_count; ++i) {
        while (x_transports[i]->step()) continue;
        (void)x_transports[i]->poll(x_sinks[i]);
        waiting = waiting || x_transports[i]->connections() > 0;
      }
    }
  }
  bool step() {
    // A thread that runs goes on for several steps, as on a shared core.
    if (x_random() % 4 == 0) x_runs = x_random() % (2 * x_count);
    const size_t node = x_runs % x_count;
    VerbsTransport& transport = *x_transports[node];
    if (x_runs < x_count) return fake::counted([&] { return transport.step(); });
    if (x_random() % 2) {
      const auto& [from, to] = x_pairs[x_random() % x_pairs.size()];
      if (from == node && x_random() % 4 == 0) return move(from, to);
      if (from == node && flows[from][to].has_more()) return send(from, to);
    }
    return fake::counted([&] { return transport.poll(x_sinks[node]); }) > 0;
  }
  bool move(size_t from, size_t to) {
    Moving& next = moving[from][to];
    if (next.under_way || next.is_shared() || next.begun == kTransfers || flows[from][to].over())
      return false;
    auto mine = fake::counted([&] { return x_transports[from]->link_to(names[to]); });
    auto owner = fake::counted([&] { return x_transports[to]->link_to(names[from]); });
    if (!mine || !owner) return false;
    draw(next);
    const bool ready = share(next, **owner, to) && can_move(next, from);
    const int rc = ready ? begin(next, **mine, to) : -FI_EAGAIN;
    if (rc && rc != transport::kDone) return next.give_back(), false;
    next.under_way = true;
    ++next.begun;
    // Short writes are posted in the order of the calls.
    if (!next.reads && next.way != Way::shared && next.there.iov_len <= transport::kAlwaysEager)
      next.written_before = flows[from][to].sent;
    if (rc == transport::kDone) next.on_done(0, flows[from][to].sent);
    return true;
  }
  void draw(Moving& next) {
    constexpr size_t kShort[] = {1, 8, 64};
    constexpr size_t kDirect[] = {3, 64, 65, 500, 4096};
    const Way way = Way(x_random() % kWays);
    const size_t length = way == Way::fast     ? kShort[x_random() % std::size(kShort)]
                          : way == Way::direct ? kDirect[x_random() % std::size(kDirect)]
                                               : Mapped::kBytes;
    const bool reads = x_random() % 2;
    const bool until_placed = way != Way::shared && way != Way::fast && x_random() % 2;
    // GPU memory of the initiator is used only with shared memory.
    const bool of_gpu_here = way == Way::shared && x_random() % 2 == 0;
    next.draw(way, reads, until_placed, length, of_gpu_here, x_random() % 4 == 0);
  }
  /// Shares the target memory of the next transfer with the peer.
  bool share(Moving& next, transport::Link& link, size_t owner) {
    if (next.way == Way::shared) {
      const auto access =
          next.reads ? transport::Access::remote_read : transport::Access::remote_write;
      const size_t length = next.there.iov_len;
      GpuRegistrations& gpu = *x_adapters[owner].gpu;
      if (next.of_gpu(next.there) &&
          !fake::counted([&] { return gpu.can_share(&next.there, 1, access); }))
        return false;
      if (fake::counted([&] { return link.share(&next.there, 1, length, access, next.key); }))
        return false;
      next.owner = &link;
      return true;
    }
    transport::RegionRegistrar& registrar =
        next.of_gpu(next.there)
            ? static_cast<transport::RegionRegistrar&>(*x_adapters[owner].gpu_registrar)
            : *link.optional().registrar;
    fake::counted([&] {
      try {
        auto opened = registrar.open(next.there, nullptr, next.reads, !next.reads);
        if (opened) next.region = std::move(*opened);
      } catch (const std::bad_alloc&) {
      }
      return 0;
    });
    if (!next.region) return false;
    next.region->describe(next.key);
    return true;
  }
  bool can_move(const Moving& next, size_t mover) {
    if (!next.of_gpu(next.here)) return true;
    return fake::counted(
        [&] { return x_adapters[mover].gpu->can_move(&next.here, 1, next.key, next.reads); });
  }
  static int begin(Moving& next, transport::Link& link, size_t token) {
    const size_t length = next.here.iov_len;
    const transport::RemoteRange range{next.key, 0, length};
    return fake::counted([&] {
      if (next.way == Way::fast) {
        const transport::RemoteRegion region(link.optional().fast, next.key);
        ck_assert(bool(region));
        return next.reads ? region.get(0, next.here.iov_base, length, token)
                          : region.put(0, next.here.iov_base, length, token);
      }
      return next.reads ? link.get(range, &next.here, 1, token)
                        : link.put(range, &next.here, 1, token, next.until_placed);
    });
  }
  bool send(size_t from, size_t to) {
    Flow& flow = flows[from][to];
    auto link = fake::counted([&] { return x_transports[from]->link_to(names[to]); });
    if (!link) return false;
    std::byte bytes[1000];
    const size_t length = length_of(flow.sent);
    if ((*link)->limits().eager < length) return false;
    std::memset(bytes, int(flow.sent), length);
    const iovec payload{bytes, length};
    const SendHint hint = x_random() % 4 ? SendHint::none : SendHint::more;
    if (fake::counted(
            [&] { return (*link)->send(numbered(flow.sent), &payload, 1, length, hint); }))
      return false;
    flow.ends_at_last = flow.ends;
    ++flow.sent;
    return true;
  }

  std::mt19937_64 x_random;
  const size_t x_count;
  const std::vector<Adapter>& x_adapters;
  uint64_t x_runs = 0;
  FlowSink x_sinks[kNodes];
  std::unique_ptr<VerbsTransport> x_transports[kNodes];
  std::vector<std::pair<size_t, size_t>> x_pairs;
};

void FlowSink::on_packet(transport::Link& link, const std::byte* header, const std::byte* payload,
                         size_t length) {
  // The engine keeps early packets in such a buffer.
  std::unique_ptr<std::byte[]> kept(new std::byte[length + 1]);
  std::memcpy(kept.get(), payload, length);
  Flow& flow = world->flows[world->index_of(link.address())][self];
  uint64_t number;
  std::memcpy(&number, header, sizeof(number));
  flow.whole = flow.whole && length == length_of(number);
  for (size_t i = 0; i < length; ++i) flow.whole = flow.whole && kept[i] == std::byte(number);
  if (number < flow.expected) flow.in_order = false;
  if (number > flow.expected) {
    flow.lost += number - flow.expected;
    if (!flow.receivers_end && flow.senders_end < number)
      flow.lost_untold += number - std::max(flow.expected, flow.senders_end);
  }
  world->moving[world->index_of(link.address())][self].on_packet(number);
  flow.expected = number + 1;
  flow.receivers_end = false;
}

void FlowSink::on_done(uint64_t token, int status) noexcept {
  world->moving[self][token].on_done(status, world->flows[self][token].sent);
}

void FlowSink::on_link_down(transport::Link& link, int) noexcept {
  const size_t peer = world->index_of(link.address());
  world->moving[self][peer].on_link_down();
  world->moving[peer][self].on_link_down();
  Flow &out = world->flows[self][peer], &in = world->flows[peer][self];
  out.senders_end = out.sent;
  in.receivers_end = true;
  ++out.ends, ++in.ends;
}

std::vector<Adapter> g_adapters;

int softerdma(const std::string& line) {
  static const auto control =
      reinterpret_cast<int (*)(const char*)>(dlsym(RTLD_DEFAULT, "softerdma_control"));
  return control ? control(line.c_str()) : -1;
}

void open_adapters() {
  const char* const personality = std::getenv("SOFTERDMA_PERSONALITY");
  const bool compat = personality && std::string(personality) == "compat";
  std::string devices;
  std::vector<util::SocketAddress> names;
  for (size_t i = 0; i < kNodes; ++i) {
    const std::string ip = (compat ? "127.0.0." : "10.8.0.") + std::to_string(i + 1);
    names.push_back(address_of(ip.c_str(), 0));
    devices += "erdma_" + std::to_string(i) + ",ip=" + ip + ",retry_ms=20;";
  }
  setenv("SOFTERDMA_DEVICES", devices.c_str(), 1);
  setenv("SOFTERDMA_DIR", temporary_path("softerdma-orders").c_str(), 1);
  for (size_t i = 0; i < kNodes; ++i) {
    auto device = Device::open("erdma_" + std::to_string(i), names[i]);
    ck_assert(bool(device));
    auto cache = RegistrationCache::create(**device, {.enabled = i % 2 == 0});
    ck_assert(bool(cache));
    fake::replace_posts(*(*device)->context());
    // GPU memory is registered for each use, and on this thread only.
    auto both = std::make_unique<GpuRegistrations>(**device, *hmem::Cuda::get(), std::move(*cache),
                                                   GpuRegistrations::Config{.linger_ns = 0});
    auto registrar = std::make_unique<GpuMemoryRegistrar>(**device, *hmem::Cuda::get());
    GpuRegistrations* const gpu = both.get();
    g_adapters.push_back({std::move(*device), std::move(registrar), gpu, std::move(both)});
  }
  for (auto& from : g_gpu_memory)
    for (auto& to : from)
      for (auto& side : to) side = std::make_unique<DeviceMemory>(Mapped::kBytes);
  void* frames[4];
  (void)backtrace(frames, 4);  // the first call loads a library
  fake::g_concerns = fake::concerns_provider;
}
void close_adapters() {
  g_adapters.clear();
  for (auto& from : g_gpu_memory)
    for (auto& to : from)
      for (auto& side : to) side.reset();
}

SUITE(.run = on_both_simulated_devices);

TEST_CASE(.name = "orders", .timeout = 600, .set_up = open_adapters, .tear_down = close_adapters);

/// The failures in a run: `many` allocations or calls in a row, from one on, and the fault of the
/// simulated adapter.
struct Trouble {
  long allocation = fake::kNever, call = fake::kNever, many = 1;
  std::string fault;
};

/// The number of endpoints, of connections that the first one may have, and of seeds.
struct Setting {
  size_t nodes;
  unsigned places;
  uint64_t seeds;
};
constexpr Setting kSettings[] = {{2, 1024, 6}, {4, 2, 1}};

/// The runs of one test.
class Runs {
 public:
  explicit Runs(const Setting& setting) : x_setting(setting) {
    x_options.background = false;
    x_options.max_connections = setting.places;
    x_options.connect_timeout_ns = x_options.peer_timeout_ns = 300'000'000'000;
  }
  ~Runs() {
    std::printf(
        "# %zu endpoints: %lu runs, %lu messages lost, %lu ends of links; transfers: %lu "
        "shared, %lu regions, %lu direct, %lu fast, of a GPU %lu\n",
        x_setting.nodes, x_runs, x_lost, x_ends, x_moved[0], x_moved[1], x_moved[2], x_moved[3],
        x_moved_by_gpu);
    if (x_runs == 0) return;  // incomplete runs do not count
    for (const uint64_t moved : x_moved) ck_assert_uint_gt(moved, 0);
    ck_assert_uint_gt(x_moved_by_gpu, 0);
  }
  /// Makes one run. Returns true if the trouble occurred.
  bool one(uint64_t seed, const Trouble& trouble) {
    Drawn world(seed, g_adapters, x_setting.nodes, x_options);
    begin(trouble);
    const bool over = world.run();
    const bool struck = end(trouble);
    bool fine = over;
    uint64_t lost = 0;
    world.for_each([&](const Flow& flow) {
      fine = fine && flow.in_order && flow.whole && !flow.lost_untold;
      lost += flow.lost;
      x_ends += flow.ends;
    });
    for (const auto& from : world.moving)
      for (const Moving& transfers : from) fine = fine && count(transfers);
    ++x_runs;
    x_lost += lost;
    ck_assert_msg(fine && (!lost || fake::g_told),
                  "seed %lu, allocation %ld, call %ld, %ld of them, '%s'%s, %lu warnings: %s", seed,
                  trouble.allocation, trouble.call, trouble.many, trouble.fault.c_str(),
                  over ? "" : ", HANGS", fake::g_told, world.text().c_str());
    return struck;
  }
  /// Makes a run that ends early.
  void some(unsigned steps) const {
    Drawn world(steps, g_adapters, x_setting.nodes, x_options);
    (void)world.run(steps);
  }
  uint64_t ends() const { return x_ends; }
  /// ERDMA_MODEL_RUNS sets the seeds of the first setting; the others keep their share.
  uint64_t last_seed() const {
    const char* const set = std::getenv("ERDMA_MODEL_RUNS");
    if (!set) return x_setting.seeds;
    return std::max<uint64_t>(
        1, std::strtoull(set, nullptr, 0) * x_setting.seeds / kSettings[0].seeds);
  }

 private:
  bool count(const Moving& transfers) {
    for (size_t way = 0; way < kWays; ++way) x_moved[way] += transfers.moved[way];
    x_moved_by_gpu += transfers.moved_by_gpu;
    return transfers.honest;
  }
  static void begin(const Trouble& trouble) {
    fake::g_calls = 0;
    fake::g_told = 0;
    fake::g_refused = trouble.call;
    fake::g_many_calls = trouble.many;
    if (!trouble.fault.empty()) ck_assert_int_eq(softerdma(trouble.fault), 0);
    fake::run_short(trouble.allocation, trouble.many);
  }
  static bool end(const Trouble& trouble) {
    const bool refused = trouble.call != fake::kNever && fake::g_calls > trouble.call;
    fake::g_refused = fake::kNever;
    if (!trouble.fault.empty()) ck_assert_int_eq(softerdma("clear"), 0);
    return fake::replenish() || refused;
  }

  const Setting& x_setting;
  Options x_options;
  uint64_t x_runs = 0, x_lost = 0, x_ends = 0, x_moved[kWays] = {}, x_moved_by_gpu = 0;
};

/// Whatever is under way, connects included, the adapter gets back all objects of the endpoints.
TEST(nothing_is_left_whenever_endpoints_end, std::size(kSettings)) {
  const Runs runs(kSettings[_i]);
  for (unsigned steps = 0; steps < 600; steps += 1 + steps / 100) runs.some(steps);
}

long in_a_row(uint64_t seed) {
  return seed % 3 == 2 ? long(1 + seed % 7) : 1;
}

/// Any allocation of either side fails, in any order of the steps of their threads.
TEST(what_a_link_took_arrives_or_is_told_wherever_memory_lacks, std::size(kSettings)) {
  Runs runs(kSettings[_i]);
  for (uint64_t seed = 1, last = runs.last_seed(); seed <= last; ++seed) {
    Trouble trouble;
    trouble.many = in_a_row(seed);
    for (trouble.allocation = 0; runs.one(seed * 1000 + uint64_t(trouble.allocation), trouble);)
      ++trouble.allocation;
    ck_assert_int_gt(trouble.allocation, 80);
  }
}

TEST(what_a_link_took_arrives_or_is_told_whichever_call_is_refused, std::size(kSettings)) {
  Runs runs(kSettings[_i]);
  for (uint64_t seed = 1, last = runs.last_seed(); seed <= last; ++seed) {
    Trouble trouble;
    trouble.many = in_a_row(seed);
    for (trouble.call = 0; runs.one(seed * 1000 + uint64_t(trouble.call), trouble);) ++trouble.call;
    ck_assert_int_gt(trouble.call, 50);
  }
  ck_assert_uint_gt(runs.ends(), 0);
}

/// A connection breaks at any work request of either side, also while there is no memory.
TEST(what_a_link_took_arrives_or_is_told_wherever_a_connection_breaks, std::size(kSettings)) {
  Runs runs(kSettings[_i]);
  for (uint64_t seed = 1, last = runs.last_seed(); seed <= last; ++seed) {
    for (unsigned request = 1; request <= 60; ++request) {
      Trouble trouble;
      trouble.many = in_a_row(seed);
      if (seed % 2 == 0) trouble.allocation = long(seed * 31 + request * 7) % 150;
      trouble.fault = "drop dev=erdma_" + std::to_string((seed + request) % 2) +
                      " n=" + std::to_string(request);
      (void)runs.one(seed * 1000 + request, trouble);
    }
  }
  ck_assert_uint_gt(runs.ends(), 0);
}

}  // namespace
}  // namespace erdma::test
