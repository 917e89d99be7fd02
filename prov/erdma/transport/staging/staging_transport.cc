#include "transport/staging/staging_transport.h"

#include <new>
#include <utility>

#include <rdma/fi_errno.h>

#include "transport/staging/staging_link.h"

namespace erdma::transport::staging {

/// Translates links and tokens of the inner transport into those of this one.
class StagingTransport::Relay final : public Sink {
 public:
  Relay(StagingTransport& owner, Sink& sink) noexcept : x_owner(owner), x_sink(sink) {}

  void on_packet(Link& link, const std::byte* header, const std::byte* payload,
                 size_t length) override {
    x_sink.on_packet(x_owner.over(link), header, payload, length);
    x_served = x_sink.take_served();
  }
  void on_done(uint64_t token, int status) noexcept override {
    if (token & Flusher::kToken) return x_owner.x_staging.flusher.on_read(status);
    Transfer* transfer = x_owner.x_staging.transfers.find(util::PoolHandle::of(token));
    if (!transfer) return;
    const uint64_t theirs = transfer->token;
    status = x_owner.x_staging.finish(*transfer, status);
    x_owner.x_staging.transfers.release(*transfer);
    x_sink.on_done(theirs, status);
  }
  void on_link_down(Link& link, int status) noexcept override {
    x_owner.x_staging.flusher.on_link_down(link, status);
    StagingLink* const over = known(link);
    if (!over) return;
    x_owner.x_staging.reads.end(*over, x_sink, status);
    over->forget_peer();
    x_sink.on_link_down(*over, status);
  }
  bool waits_for(const Link& link) noexcept override {
    const StagingLink* over = known(link);
    return over && x_sink.waits_for(*over);
  }
  bool wants_previews() const noexcept override { return x_sink.wants_previews(); }
  void on_preview(Link& link, const std::byte* header) noexcept override {
    if (StagingLink* over = known(link)) x_sink.on_preview(*over, header);
  }
  void on_question() noexcept override { x_sink.on_question(); }

 private:
  StagingTransport& x_owner;
  Sink& x_sink;
};

StagingTransport::StagingTransport(std::unique_ptr<Transport> inner,
                                   hmem::DeviceMemory& device_memory, DirectSource* direct,
                                   const util::SocketAddress& name, hmem::Cuda* cuda,
                                   PeerCounters* by_peer) noexcept
    : x_inner(std::move(inner)),
      x_staging{device_memory, direct, cuda, by_peer, Flusher(*x_inner, direct, name)} {}

StagingTransport::~StagingTransport() = default;

int StagingTransport::poll(Sink& sink) noexcept {
  x_staging.lack.forget();
  Relay relay(*this, sink);
  const int steps = x_inner->poll(relay) + x_staging.reads.poll(sink);
  return steps + x_staging.flusher.poll(sink);
}

util::Result<Link*> StagingTransport::link_to(const util::SocketAddress& address) noexcept try {
  util::Result<Link*> inner = x_inner->link_to(address);
  if (!inner) return inner;
  return static_cast<Link*>(&over(**inner));
} catch (const std::bad_alloc&) {
  return -FI_ENOMEM;
}

StagingLink* StagingTransport::known(const Link& inner) noexcept {
  return static_cast<StagingLink*>(inner.user);
}

StagingLink& StagingTransport::over(Link& inner) {
  if (inner.user) [[likely]]
    return *known(inner);
  auto made = std::make_unique<StagingLink>(x_staging, inner);
  StagingLink& link = *made;
  x_links.emplace(&inner, std::move(made));
  inner.user = &link;
  return link;
}

int Staging::finish(Transfer& transfer, int status) noexcept {
  if (status != 0 || !transfer.host || !transfer.inbound) return status;
  return device_memory.scatter(transfer.memory, transfer.count, 0, transfer.host.get(),
                               transfer.length);
}

}  // namespace erdma::transport::staging
