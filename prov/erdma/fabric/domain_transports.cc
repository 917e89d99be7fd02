// The composition root: this file alone names the transports together.
#include "fabric/domain_transports.h"

#include <mutex>
#include <utility>
#include <vector>

#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include "fabric/endpoint_statistics.h"
#include "fabric/endpoint_summary.h"
#include "fabric/env.h"
#include "fabric/local_addresses.h"
#include "fabric/mr.h"
#include "fabric/transport_set.h"
#include "hmem/cuda.h"
#include "protocol/wire.h"
#include "transport/self/self_transport.h"
#include "transport/shm/shm_transport.h"
#include "transport/staging/staging_transport.h"
#include "transport/verbs/gpu_memory.h"
#include "transport/verbs/gpu_registrations.h"
#include "transport/verbs/known_memory.h"
#include "transport/verbs/verbs_transport.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/process_epoch.h"

namespace erdma::fabric {
namespace {

/// How often to try another port until one is free both for the NIC's listener and for shared
/// memory's.
constexpr int kNameAttempts = 16;

transport::shm::Options shm_options(const Settings& settings, transport::shm::NameScope scope,
                                    EndpointStatistics& statistics) noexcept {
  using transport::shm::PathPolicy;
  using transport::shm::PtracerPolicy;
  using transport::shm::StreamingPolicy;
  transport::shm::Options options;
  options.cma = settings.cma != Switch::off;
  options.paths = settings.cma == Switch::on ? PathPolicy::cma : PathPolicy::measure;
  options.ptracer = settings.ptracer == Ptracer::any    ? PtracerPolicy::any
                    : settings.ptracer == Ptracer::none ? PtracerPolicy::none
                                                        : PtracerPolicy::ancestor;
  options.streaming = settings.streaming == Switch::on    ? StreamingPolicy::always
                      : settings.streaming == Switch::off ? StreamingPolicy::never
                                                          : StreamingPolicy::calibrate;
  options.protocol_version = protocol::wire::kVersion;
  options.eager_bytes = settings.eager_bytes;
  options.hot_peers = settings.hot_peers;
  options.scope = scope;
  options.questions = statistics.questions();
  options.counters = &statistics.shm_counters();
  options.by_peer = &statistics;
  if (settings.connect_timeout_ms)
    options.connect_timeout_ns = settings.connect_timeout_ms * util::kMillisecond;
  return options;
}

transport::verbs::Options verbs_options(const Settings& settings, const std::string& key) {
  using transport::verbs::Rendezvous;
  transport::verbs::Options options;
  options.rendezvous = settings.rendezvous == RendezvousBy::read    ? Rendezvous::read
                       : settings.rendezvous == RendezvousBy::write ? Rendezvous::write
                                                                    : Rendezvous::automatic;
  options.protocol_version = protocol::wire::kVersion;
  options.eager_bytes = settings.nic_eager_bytes;
  options.max_connections = settings.max_connections;
  options.peer_timeout_ns = settings.peer_timeout_ms * util::kMillisecond;
  if (settings.connect_timeout_ms)
    options.connect_timeout_ns = settings.connect_timeout_ms * util::kMillisecond;
  options.job_key = key;
  return options;
}

transport::verbs::FlushPolicy flush_policy(Switch setting) noexcept {
  using transport::verbs::FlushPolicy;
  return setting == Switch::on    ? FlushPolicy::always
         : setting == Switch::off ? FlushPolicy::never
                                  : FlushPolicy::automatic;
}

/// The transport itself if all buffers are host memory; otherwise wrapped in one that stages device
/// memory.
template <typename... How>
std::unique_ptr<transport::Transport> for_buffers(const TransportRequest& request,
                                                  std::unique_ptr<transport::Transport> transport,
                                                  const How&... how) {
  if (!request.devices) return transport;
  return std::make_unique<transport::staging::StagingTransport>(std::move(transport),
                                                                *request.devices, how...);
}

/// Adds the shared memory transport, and the transport of the endpoint to itself under the same
/// name.
void add_local_transports(TransportSet& set, const TransportRequest& request,
                          std::unique_ptr<transport::shm::ShmTransport> shm,
                          const Settings& settings) {
  const bool asked = request.devices && settings.cuda_ipc != Switch::off;
  hmem::Cuda* const cuda = asked ? hmem::Cuda::get() : nullptr;
  hmem::Cuda* const ipc = cuda == request.devices ? cuda : nullptr;
  const auto add = [&](std::unique_ptr<transport::Transport> transport,
                       transport::PeerCounters* by_peer) {
    return set.add(
        for_buffers(request, std::move(transport), nullptr, util::SocketAddress{}, ipc, by_peer));
  };
  set.shm = add(std::move(shm), &request.statistics);
  set.self = add(std::make_unique<transport::self::SelfTransport>(set.name), nullptr);
}

}  // namespace

/// An open NIC. It outlives the endpoints' transports. In a forked child the NIC's state belongs to
/// the parent, so the child never closes it.
struct DomainTransports::Nic {
  std::unique_ptr<transport::verbs::Device> device;
  std::unique_ptr<transport::verbs::RegistrationCache> cache;
  transport::DirectSource* direct = nullptr;  ///< for GPU memory: `cache`, or null
  std::unique_ptr<transport::verbs::GpuMemoryRegistrar> opener;  ///< of GPU memory, for RMA
  transport::verbs::RegistrationCache* host = nullptr;           ///< of host memory only
  const char* no_zero_copy = nullptr;                            ///< why host memory is copied
  bool each_time = false;                                ///< host memory is registered per use
  std::mutex probing;                                    ///< protects `known` and `refused`
  std::unique_ptr<transport::verbs::KnownMemory> known;  ///< for endpoints that may not call CUDA
  bool refused = false;                                  ///< `known` can't be made
  const uint32_t epoch = util::process_epoch();

  /// Makes the caches of registrations. `cuda` may be null.
  int make_cache(const Settings& settings, hmem::Cuda* cuda);
  ~Nic() {
    if (epoch == util::process_epoch()) return;
    (void)known.release();
    (void)cache.release();
    (void)device.release();
  }
};

int DomainTransports::Nic::make_cache(const Settings& settings, hmem::Cuda* cuda) {
  transport::verbs::RegistrationCache::Config config;
  config.enabled = settings.mr_cache != Switch::off;
  auto made = transport::verbs::RegistrationCache::create(*device, config);
  if (!made) return made.error();
  cache = std::move(*made);
  host = cache.get();
  no_zero_copy = cache->refuses_always();
  each_time = cache->registers_each_time();
  if (!cuda || !config.enabled) return 0;
  transport::verbs::GpuRegistrations::Config gpu;
  gpu.flush = flush_policy(settings.hmem_recv_flush);
  gpu.keeps_all = settings.hmem_mr_cache == Switch::on;
  auto both =
      std::make_unique<transport::verbs::GpuRegistrations>(*device, *cuda, std::move(cache), gpu);
  direct = both.get();
  cache = std::move(both);
  return 0;
}

DomainTransports::DomainTransports(const Settings& settings, const LocalAddresses& local,
                                   MemoryRegions& regions) noexcept
    : x_settings(settings), x_local(local), x_regions(regions) {}

DomainTransports::~DomainTransports() = default;

int DomainTransports::open_nic(const fi_info& info, const util::SocketAddress& address,
                               hmem::Cuda* cuda) {
  const std::string name = info.domain_attr->name;
  auto nic = std::make_unique<Nic>();
  auto device = transport::verbs::Device::open(name, address, x_settings.fork);
  if (!device) return device.error();
  nic->device = std::move(*device);
  if (const int rc = nic->make_cache(x_settings, cuda)) return rc;
  if (cuda) {
    nic->opener = std::make_unique<transport::verbs::GpuMemoryRegistrar>(*nic->device, *cuda);
    x_regions.register_device_memory_with(*nic->opener);
  }
  x_nic = std::move(nic);
  x_device_name = name;
  if (info.nic && info.nic->link_attr) x_device_speed = info.nic->link_attr->speed;
  return 0;
}

util::Result<hmem::DeviceMemory*> DomainTransports::memory_without_cuda(hmem::Cuda* cuda) {
  if (!cuda || !x_nic) {
    ERDMA_NOTICE(gpu_refused, EP_CTRL, "GPU memory can't be used without calling CUDA: %s",
                 cuda ? "there is no NIC here, and inside a host CUDA copies it"
                      : "the endpoint has no FI_HMEM");
    return -FI_EOPNOTSUPP;
  }
  const std::lock_guard guard(x_nic->probing);
  if (x_nic->refused) return -FI_EOPNOTSUPP;
  if (!x_nic->known) {
    auto known = std::make_unique<transport::verbs::KnownMemory>(
        *x_nic->device, *cuda, *x_nic->host, flush_policy(x_settings.hmem_recv_flush),
        verbs_options(x_settings, {}));
    const int probed = known->probe();
    x_nic->refused = probed == -FI_EOPNOTSUPP;  // other errors may not recur
    if (probed) return probed == -FI_EAGAIN ? -FI_EOPNOTSUPP : probed;
    x_nic->known = std::move(known);
  }
  // On each call, since an earlier one may have run out of memory. The call skips regions that are
  // already kept.
  x_regions.keep_device_memory_with(*x_nic->known);
  return static_cast<hmem::DeviceMemory*>(x_nic->known.get());
}

transport::verbs::KnownMemory* DomainTransports::known_memory(
    const hmem::DeviceMemory* devices) const {
  const std::lock_guard guard(x_nic->probing);
  transport::verbs::KnownMemory* const known = x_nic->known.get();
  return known == devices ? known : nullptr;
}

util::Result<TransportSet> DomainTransports::open(const TransportRequest& request) {
  util::Result<TransportSet> set = x_nic ? open_with_nic(request) : open_shm_only(request);
  if (!set) return set;
  set->local = &x_local;
  set->device_memory = request.devices != nullptr;
  set->statistics = &request.statistics;
  return set;
}

util::Result<TransportSet> DomainTransports::open_shm_only(const TransportRequest& request) {
  using transport::shm::ShmTransport;
  if (!request.shared_memory) {
    ERDMA_NOTICE(no_data, DOMAIN,
                 "no peer can be reached: FI_ERDMA_SHM=off, and there is no NIC here");
    return -FI_EOPNOTSUPP;
  }
  auto shm = ShmTransport::open(
      shm_options(x_settings, transport::shm::NameScope::host, request.statistics), request.name);
  if (!shm) return shm.error();
  TransportSet set;
  set.name = (*shm)->name();
  add_local_transports(set, request, std::move(*shm), x_settings);
  return set;
}

EndpointFacts DomainTransports::describe(const TransportRequest& request,
                                         const TransportSet& set) const {
  using Gpu = EndpointFacts::Gpu;
  EndpointFacts facts;
  facts.name = set.name.to_string();
  facts.device = x_device_name;
  facts.speed = x_device_speed;
  facts.nic = set.nic != nullptr;
  facts.no_zero_copy = x_nic ? x_nic->no_zero_copy : nullptr;
  facts.each_time = x_nic && x_nic->each_time;
  facts.apart = x_nic && x_nic->device->keeps_from_children();
  facts.shm = set.shm != nullptr;
  facts.no_shm = x_settings.shm == Switch::off ? "FI_ERDMA_SHM=off"
                 : request.shared_memory       ? "no shared memory"
                                               : "as the application asked";
  facts.cma = x_settings.cma != Switch::off;
  if (!request.devices) return facts;
  const bool ipc = x_settings.cuda_ipc != Switch::off;
  facts.no_direct = x_nic ? "FI_ERDMA_MR_CACHE=off" : "FI_ERDMA_CUDA_IPC=off";
  facts.gpu = x_nic ? known_memory(request.devices) ? Gpu::direct
                      : x_nic->direct               ? Gpu::registered
                                                    : Gpu::staged
              : ipc ? Gpu::ipc
                    : Gpu::staged;
  return facts;
}

/// The NIC's listener chooses the port, and shared memory listens under the same name.
util::Result<TransportSet> DomainTransports::open_with_nic(const TransportRequest& request) {
  using transport::verbs::VerbsTransport;
  std::vector<std::unique_ptr<VerbsTransport>> elsewhere;  // occupies the ports that did not suit
  transport::verbs::KnownMemory* const known = known_memory(request.devices);
  transport::verbs::Options options = verbs_options(x_settings, request.key);
  options.questions = request.statistics.questions();
  options.counters = &request.statistics.nic_counters();
  options.by_peer = &request.statistics;
  for (int attempt = 1;; ++attempt) {
    auto nic =
        VerbsTransport::open(options, *x_nic->device, known ? *known : *x_nic->cache, request.name);
    if (!nic) return nic.error();
    TransportSet set;
    set.name = (*nic)->name();
    const int local = request.shared_memory ? add_local(set, request) : 0;
    if (local == 0) {
      transport::DirectSource* const direct = known ? known : x_nic->direct;
      set.nic = set.add(
          for_buffers(request, std::move(*nic), direct, set.name, nullptr, &request.statistics));
      return set;
    }
    if (request.name.port() || attempt == kNameAttempts) return local;
    elsewhere.push_back(std::move(*nic));
  }
}

/// Adds shared memory and the transport to itself, under the name of the NIC's listener. Returns 0,
/// or -FI_EADDRINUSE if the name is taken. After any other error local peers are reached through
/// the NIC (logged).
int DomainTransports::add_local(TransportSet& set, const TransportRequest& request) {
  auto shm = transport::shm::ShmTransport::open(
      shm_options(x_settings, transport::shm::NameScope::address, request.statistics), set.name);
  if (shm) {
    add_local_transports(set, request, std::move(*shm), x_settings);
    return 0;
  }
  if (shm.error() == -FI_EADDRINUSE) return shm.error();
  ERDMA_NOTICE(local_path, DOMAIN, "no shared memory (%s): local peers are reached through the NIC",
               fi_strerror(-shm.error()));
  return 0;
}

}  // namespace erdma::fabric
