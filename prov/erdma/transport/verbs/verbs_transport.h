#pragma once

#include <cstdint>
#include <memory>
#include <new>

#include "transport/mailbox.h"
#include "transport/transport.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/device.h"
#include "transport/verbs/link_manager.h"
#include "transport/verbs/options.h"
#include "transport/verbs/registration.h"
#include "util/clock.h"
#include "util/event_fd.h"
#include "util/fd.h"
#include "util/result.h"
#include "util/socket_address.h"

namespace erdma::transport::verbs {

/// Makes the connector of a transport: Connector::start, or a test's function.
using StartConnector = util::Result<std::unique_ptr<Connector>> (*)(const ConnectorConfig& config);

/// All peers of one endpoint that are reached through the NIC: one RC queue pair each, made on
/// first use. One background thread (Connector). In a forked child the object may only be
/// destroyed.
class VerbsTransport final : public Transport {
 public:
  /// Listens under `name` (an IP of the device; port 0 = pick a free one). `device`, `cache` and
  /// `clock` (for tests; null = the system's) must outlive the transport.
  static util::Result<std::unique_ptr<VerbsTransport>> open(
      const Options& options, Device& device, RegistrationCache& cache,
      const util::SocketAddress& name, const util::Clock* clock = nullptr,
      StartConnector start_connector = &Connector::start);
  VerbsTransport(const VerbsTransport&) = delete;
  VerbsTransport& operator=(const VerbsTransport&) = delete;
  ~VerbsTransport() override;
  /// In a forked child only descriptors are closed: the thread does not exist there, the memory of
  /// the transport is not mapped, and the device's objects belong to the parent.
  static void operator delete(VerbsTransport* transport, std::destroying_delete_t);

  /// Includes the port that was bound.
  const util::SocketAddress& name() const noexcept { return x_connector->name(); }
  const Counters& counters() const noexcept { return x_shared.counters; }
  size_t connections() const noexcept { return x_shared.table.in_use(); }
  Resources& resources() noexcept { return x_shared; }

  int poll(Sink& sink) noexcept override;
  util::Result<Link*> link_to(const util::SocketAddress& address) noexcept override;
  int wait_fd() const noexcept override { return x_epoll.get(); }
  bool arm() noexcept override;
  void disarm() noexcept override;
  void shutdown() noexcept override;
  /// See Connector::step().
  bool step() noexcept { return x_connector->step(); }

 private:
  /// Mail from the connector's thread.
  struct Inbox final : MailSink {
    explicit Inbox(const util::EventFd& bell) noexcept : mails(bell) {}
    void post(Mail mail) noexcept override { mails.post(std::move(mail)); }
    void ask() noexcept override { mails.ask(); }
    void remind() noexcept override { mails.remind(); }
    Mailbox<Mail, util::EventFd> mails;
  };

  /// Makes connections, on the connector's thread.
  class Maker final : public ConnectionFactory {
   public:
    explicit Maker(VerbsTransport& transport) noexcept : x_all(transport) {}
    std::unique_ptr<Connection> prepare(ibv_qp_init_attr& attr) noexcept override;
    size_t connections() const noexcept override { return x_all.connections(); }
    void queue_failed(const ibv_cq* queue) noexcept override { x_all.x_shared.queues.fail(queue); }
    int adopt(Connection& connection, ibv_qp* queue_pair) noexcept override {
      return connection.adopt(queue_pair);
    }
    void fill_terms(const util::SocketAddress& peer, Terms& terms) noexcept override;
    uint64_t continues(const util::SocketAddress& peer) noexcept override {
      return x_all.x_links.claim(peer);
    }
    int agree(Connection& connection, const Terms& peer, bool active) noexcept override {
      return connection.agree(peer, active);
    }

   private:
    VerbsTransport& x_all;
  };

  VerbsTransport(const Options& options, Device& device, RegistrationCache& cache,
                 const util::Clock* clock);
  int make_descriptors() noexcept;
  int attend(Sink& sink) noexcept;
  void ignore_channel() noexcept;
  void abandon() noexcept;

  Resources x_shared;
  Worklist x_worklist;
  Completions x_completions;
  bool x_check_clock = false;
  bool x_closed = false;
  bool x_channel_broken = false;  ///< and no longer in x_epoll
  util::EventFd x_wake;
  Inbox x_inbox;
  util::Fd x_epoll;
  util::SystemClock x_own_clock;
  LinkTable x_links;
  LinkManager x_manager;
  Maker x_maker;
  const uint32_t x_epoch;
  std::unique_ptr<Connector> x_connector;  ///< last, because its thread uses the members above
};

}  // namespace erdma::transport::verbs
