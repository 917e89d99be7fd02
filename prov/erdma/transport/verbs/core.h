#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "transport/verbs/completion_queues.h"
#include "transport/verbs/connection_table.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/device.h"
#include "transport/verbs/link.h"
#include "transport/verbs/mailbox.h"
#include "transport/verbs/resources.h"
#include "util/fd.h"

namespace erdma::transport::verbs {

/// Makes the connector of a transport: Connector::start, or a test's.
using StartConnector = util::Result<std::unique_ptr<Connector>> (*)(const ConnectorConfig& config);

/// The polling side of one endpoint on a NIC: links, completion queues, and who wants attention.
class Core final : public ConnectionFactory {
 public:
  static util::Result<std::unique_ptr<Core>> open(const Options& options, Device& device,
                                                  RegistrationCache& cache,
                                                  const util::SocketAddress& name,
                                                  const util::Clock* clock,
                                                  StartConnector start_connector);
  Core(const Options& options, Device& device, RegistrationCache& cache, const util::Clock* clock);
  ~Core();

  int poll(Sink& sink) noexcept;
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept;
  int wait_fd() const noexcept { return x_epoll.get(); }
  bool arm() noexcept;
  void disarm() noexcept;
  void shutdown() noexcept;
  /// In a forked child, instead of destruction: closes descriptors, touches nothing shared.
  void abandon() noexcept;
  uint32_t epoch() const noexcept { return x_epoch; }
  const util::SocketAddress& name() const noexcept { return x_connector->name(); }

  // ConnectionFactory: the connector's thread.
  std::unique_ptr<Connection> prepare(ibv_qp_init_attr& attr) noexcept override;
  size_t connections() const noexcept override { return x_table.in_use(); }
  int adopt(Connection& connection, ibv_qp* queue_pair) noexcept override;
  void fill_terms(const Connection& connection, const util::SocketAddress& peer,
                  Terms& terms) noexcept override;
  uint64_t continues(const util::SocketAddress& peer) noexcept override;
  int agree(Connection& connection, const Terms& peer, bool active) noexcept override;

  Resources& resources() noexcept { return x_shared; }
  const Counters& counters() const noexcept { return x_shared.counters; }
  CompletionQueues& completion_queues() noexcept { return x_queues; }
  void release_id(uint32_t id) noexcept { x_table.release(id); }

  // What they ask for.
  int connect(VerbsLink& link) noexcept;
  void break_connection(Connection& connection, int status, const char* why) noexcept;
  void fail_unconnected(VerbsLink& link, int status) noexcept;
  void retired(Connection& connection) noexcept;
  void count_retiring(int change) noexcept { x_retiring = unsigned(int(x_retiring) + change); }
  /// Now; and tick() comes in time to see who did not answer.
  uint64_t begin_grace() noexcept;
  void look_again() noexcept { x_attention = true; }
  void mark_dirty(Connection& connection) noexcept {
    auto& hook = static_cast<util::ListHook<DirtyTag>&>(connection);
    if (!hook.linked()) x_dirty.push_back(connection);
  }
  void starve(Connection& connection) noexcept;  ///< no block: try again once one is free
  void feed_starved() noexcept {
    if (!x_starved.empty()) [[unlikely]]
      wake_starved();
  }
  int defer_done(uint64_t token) noexcept;

 private:
  /// More than the limit is there for a while: connections that others make, and half-made ones.
  static constexpr uint32_t kSpareIds = 256;

  // core.cc
  int make_descriptors() noexcept;
  int poll_queues(Sink& sink) noexcept;
  void dispatch(const ibv_wc* completions, int count, Sink& sink) noexcept;
  void queue_is_broken() noexcept;
  void settle_dirty() noexcept;
  int attend(Sink& sink) noexcept;
  void wake_starved() noexcept;
  VerbsLink& find_or_make(const util::SocketAddress& address);

  // core_mail.cc
  int read_mail(Sink& sink) noexcept;
  void open_mail(Mail& mail, Sink& sink);
  void on_up(Mail& mail, Sink& sink);
  void on_failed(const Mail& mail, Sink& sink);
  void attempt_failed(const util::SocketAddress& peer, int status, Sink& sink) noexcept;
  void on_lost(const Mail& mail) noexcept;
  void drop(std::unique_ptr<Connection> connection, uint64_t connection_id) noexcept;
  bool resume(VerbsLink& link, const Mail& mail, Sink& sink) noexcept;
  int request(VerbsLink& link) noexcept;
  void leave_connecting(VerbsLink& link) noexcept;
  void down(VerbsLink& link, int status, Sink& sink) noexcept;
  int admit_waiting(Sink& sink) noexcept;
  void admit_first(Sink& sink) noexcept;
  void admit_overdue(Sink& sink, uint64_t now) noexcept;
  bool retire_one(const Connection* spared) noexcept;
  size_t to_others() const noexcept { return x_connected.size() - x_to_self; }
  /// Of those that nobody asked to give up.
  bool too_many() const noexcept {
    return to_others() > x_shared.options.max_connections + x_retiring + x_closing.size();
  }

  // core_end.cc
  int close_broken(Sink& sink) noexcept;
  bool is_drained(Connection& connection) noexcept;
  void finish(Connection& connection, Sink& sink) noexcept;
  void link_is_down(VerbsLink& link, Sink& sink) noexcept;
  void report_down(VerbsLink& link, int status, Sink& sink) noexcept;
  void watch_for(VerbsLink& link) noexcept;
  void tick(Sink& sink, uint64_t now) noexcept;
  void watch(Connection& connection, uint64_t now) noexcept;
  bool watch_retirement(Connection& connection, uint64_t now) noexcept;
  void watch_given_up(Sink& sink, uint64_t now) noexcept;
  void say_goodbye() noexcept;
  bool goodbyes_said() noexcept;

  // What poll() touches first.
  CompletionQueues x_queues;
  util::IntrusiveList<Connection, DirtyTag> x_dirty;
  Resources x_shared;
  ConnectionTable x_table;
  bool x_attention = false;
  bool x_check_clock = false;
  bool x_closed = false;

  util::Fd x_epoll, x_wake, x_timer;
  Mailbox x_mailbox;
  util::SystemClock x_own_clock;
  const util::Clock* x_clock;
  const uint32_t x_epoch;
  const uint64_t x_tick_ns;
  const uint64_t x_grace_ns;  ///< how long others wait for the answer of who is asked to retire
  uint64_t x_tick_in;         ///< one of both
  uint64_t x_next_tick = 0;
  uint64_t x_timer_ns = 0;  ///< for which the timer was set; 0 = its end was noticed

  std::mutex x_links_mutex;  ///< for changes to the table, and for the connector's look-ups in it
  std::unordered_map<util::SocketAddress, std::unique_ptr<VerbsLink>, util::SocketAddressHash>
      x_links;
  std::vector<Connection*> x_connected;  ///< all that are owned by links
  std::vector<Connection*> x_closing;
  std::vector<Connection*> x_starved;
  std::vector<VerbsLink*> x_waiting;    ///< for a place below max_connections
  std::vector<VerbsLink*> x_unwatched;  ///< gave up their connection: nobody sees a death
  std::vector<VerbsLink*> x_failed;     ///< without a connection: on_link_down() is due
  std::vector<uint64_t> x_dones;        ///< of transfers of no length
  std::vector<ibv_wc> x_stash;          ///< found by arm()
  unsigned x_to_self = 0;  ///< of x_connected: they cannot be given up, so they do not count
  unsigned x_connecting = 0;
  unsigned x_retiring = 0;
  std::unique_ptr<Connector> x_connector;  ///< last: its thread uses what is above
};

}  // namespace erdma::transport::verbs
