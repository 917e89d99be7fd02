#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "transport/verbs/connection_backend.h"
#include "transport/verbs/queue_pairs.h"
#include "util/private_fds.h"

namespace erdma::transport::verbs {

/// For iWARP devices: rdma_cm carries hellos as private data. Queue pairs are made on the
/// endpoint's own protection domain and assigned to the cm id while librdmacm changes their states.
class RdmaCmBackend final : public ConnectionBackend {
 public:
  RdmaCmBackend(const Device& device, const util::SocketAddress& name, QueuePairs& queue_pairs);
  ~RdmaCmBackend() override;
  RdmaCmBackend(const RdmaCmBackend&) = delete;
  RdmaCmBackend& operator=(const RdmaCmBackend&) = delete;

  int listen(util::SocketAddress& name) noexcept override;
  void stop_listening() noexcept override;
  int fd() const noexcept override { return x_channel ? x_channel->fd : -1; }
  void dispatch(BackendEvents& events) override;
  uint64_t next_deadline() const noexcept override { return UINT64_MAX; }
  void expire(BackendEvents&) override {}
  int connect(uint64_t id, const util::SocketAddress& peer) noexcept override;
  ibv_qp* create_queue_pair(uint64_t id, ibv_qp_init_attr& attr, Path& own) noexcept override;
  int greet(uint64_t id, const HelloBytes& hello) noexcept override;
  int confirm(uint64_t) noexcept override { return 0; }
  void refuse(uint64_t id, const HelloPrefix& refusal) noexcept override;
  bool close(uint64_t id, bool orderly) noexcept override;
  void abandon() noexcept override;

 private:
  enum class State : uint8_t {
    resolving,
    reached,
    requested,  ///< active: rdma_connect() is under way
    asked,      ///< passive: within on_request(), or rdma_accept() is under way
    up,
    ended,    ///< on_closed() or on_refused() was called
    forsaken  ///< closed while requested: destroying the id now would wait for the peer
  };
  struct CmIdDeleter {
    void operator()(rdma_cm_id* id) const noexcept;
  };
  using CmId = std::unique_ptr<rdma_cm_id, CmIdDeleter>;
  struct ChannelDeleter {
    void operator()(rdma_event_channel* channel) const noexcept {
      rdma_destroy_event_channel(channel);
    }
  };
  struct Entry {
    CmId cm;
    State state = State::resolving;
    bool active = false;
  };
  /// A copy of an event, because the event must be acknowledged before its id can be destroyed.
  struct Event {
    rdma_cm_event_type type;
    int status;
    uint64_t id;
    rdma_cm_id* cm;
    bool of_listener;
    size_t length;
    std::byte bytes[256];
  };

  int bind_and_listen(const util::SocketAddress& name) noexcept;
  bool next_event(Event& event) noexcept;
  void handle(const Event& event, BackendEvents& events);
  void on_request(const Event& event, BackendEvents& events);
  void on_resolved(Entry& entry, const Event& event, BackendEvents& events);
  void on_established(Entry& entry, const Event& event, BackendEvents& events);
  void on_rejected(Entry& entry, const Event& event, BackendEvents& events);
  void release(uint64_t id, BackendEvents& events);
  void end(Entry& entry, uint64_t id, int status, BackendEvents& events);
  bool own_device(const rdma_cm_id* cm) const noexcept;
  Entry* find(uint64_t id) noexcept;

  const Device& x_device;
  const util::SocketAddress x_own;
  QueuePairs& x_queue_pairs;
  std::unique_ptr<rdma_event_channel, ChannelDeleter> x_channel;
  util::PrivateFd x_channel_fd;
  CmId x_listener;
  std::unordered_map<uint64_t, Entry> x_entries;
};

}  // namespace erdma::transport::verbs
