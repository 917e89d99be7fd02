#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fake/connection.h"
#include "transport/verbs/connector.h"
#include "transport/verbs/device.h"

namespace erdma::test {

using namespace transport::verbs;

/// A Connector on a simulated or real device with the least that it needs: queue pairs that share
/// one completion queue and one buffer. The test's thread does the work of the polling thread.
class ConnectorEndpoint final : ConnectionFactory, MailSink {
 public:
  static constexpr int kEntries = 8192;
  static constexpr uint32_t kReceives = 2;

  explicit ConnectorEndpoint(const Device& a_device, const Options& options = {}, uint16_t port = 0)
      : device(a_device),
        x_region(ibv_reg_mr(device.pd(), x_memory, sizeof(x_memory), peer_rights(false, true))),
        x_queue(ibv_create_cq(device.context(), kEntries, nullptr, nullptr, 0)) {
    util::SocketAddress name = device.address();
    name.set_port(port);
    auto started = Connector::start({&device, options, name, this, this, &x_clock});
    status = started.error();
    if (started) connector = std::move(*started);
  }
  ~ConnectorEndpoint() {
    up.clear();
    connector.reset();
    receive_mail();
    up.clear();  // connections go before the resources of their queue pairs
  }

  const util::SocketAddress& name() const { return connector->name(); }

  /// Waits for mail and sorts it. Returns false if none came in time.
  bool wait_mail(int seconds = 20) {
    std::unique_lock lock(x_mutex);
    if (!x_arrived.wait_for(lock, std::chrono::seconds(seconds),
                            [this] { return !x_mails.empty(); }))
      return false;
    lock.unlock();
    receive_mail();
    return true;
  }
  template <typename Done>
  bool wait(Done done) {
    while (!done())
      if (!wait_mail()) return false;
    return true;
  }

  /// Waits until the polling thread was reminded so often in all.
  bool wait_reminded(unsigned times, int seconds = 20) {
    std::unique_lock lock(x_mutex);
    return x_arrived.wait_for(lock, std::chrono::seconds(seconds),
                              [&] { return reminders >= times; });
  }

  bool send_byte(Connection& connection) {
    ibv_sge piece{reinterpret_cast<uintptr_t>(x_memory), 1, x_region->lkey};
    ibv_send_wr request{}, *bad = nullptr;
    request.wr_id = connection.number;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    return !ibv_post_send(connection.queue_pair.get(), &request, &bad);
  }
  /// Waits for one completion of `connection`. Skips those of attempts that were given up, whose
  /// receives are flushed, and those of an older queue pair with the same number.
  ibv_wc completion(const Connection& connection) {
    ibv_wc done{};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (std::chrono::steady_clock::now() < end)
      if (ibv_poll_cq(x_queue.get(), 1, &done) && done.wr_id == connection.number) return done;
    done.status = IBV_WC_GENERAL_ERR;
    return done;
  }
  void close(size_t index, bool orderly) {
    const uint64_t id = up[index].connection_id;
    up.erase(up.begin() + ptrdiff_t(index));
    connector->close(id, orderly);
  }

  const Device& device;
  std::vector<Mail> up, failed, lost;
  std::atomic<int> alive = 0;
  std::atomic<unsigned> reminders = 0;
  int status = 0;
  std::unique_ptr<Connector> connector;

 private:
  void receive_mail() {
    std::vector<Mail> mails;
    {
      const std::lock_guard guard(x_mutex);
      mails.swap(x_mails);
    }
    for (Mail& mail : mails) {
      if (mail.type == Mail::Type::up)
        up.push_back(std::move(mail));
      else if (mail.type == Mail::Type::failed)
        failed.push_back(std::move(mail));
      else if (mail.type == Mail::Type::lost)
        lost.push_back(std::move(mail));
      else if (mail.type == Mail::Type::leave_open)
        (void)mail.connection->queue_pair.release(), device.leave_open();
    }
  }

  std::unique_ptr<Connection> prepare(ibv_qp_init_attr& attr) noexcept override {
    attr.send_cq = attr.recv_cq = x_queue.get();
    attr.cap = {4, kReceives, 1, 1, 0};
    return std::make_unique<Connection>(alive);
  }
  void queue_failed(const ibv_cq*) noexcept override {}
  size_t connections() const noexcept override { return size_t(alive); }
  int adopt(Connection& connection, ibv_qp* queue_pair) noexcept override {
    connection.queue_pair.reset(queue_pair);
    for (uint32_t i = 0; i < kReceives; ++i) {
      ibv_sge piece{reinterpret_cast<uintptr_t>(x_memory), sizeof(x_memory), x_region->lkey};
      ibv_recv_wr request{}, *bad = nullptr;
      request.wr_id = connection.number;
      request.sg_list = &piece;
      request.num_sge = 1;
      if (const int rc = ibv_post_recv(connection.queue_pair.get(), &request, &bad))
        return -std::abs(rc);
    }
    return 0;
  }
  void fill_terms(const util::SocketAddress&, Terms& terms) noexcept override {
    terms.credits = kReceives;
    terms.receive_bytes = sizeof(x_memory);
  }
  uint64_t continues(const util::SocketAddress&) noexcept override { return 0; }
  int agree(Connection&, const Terms&, bool) noexcept override { return 0; }
  void post(Mail mail) noexcept override {
    {
      const std::lock_guard guard(x_mutex);
      x_mails.push_back(std::move(mail));
    }
    x_arrived.notify_one();
  }
  void remind() noexcept override {
    {
      const std::lock_guard guard(x_mutex);
      ++reminders;
    }
    x_arrived.notify_one();
  }

  util::SystemClock x_clock;
  char x_memory[256] = {};
  MemoryRegion x_region;
  CompletionQueue x_queue;
  std::mutex x_mutex;
  std::condition_variable x_arrived;
  std::vector<Mail> x_mails;
};

}  // namespace erdma::test
