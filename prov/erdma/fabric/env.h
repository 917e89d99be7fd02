#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "transport/verbs/fork_safety.h"
#include "util/notice.h"

struct fi_provider;

namespace erdma::fabric {

enum class Switch : uint8_t { automatic, on, off };
enum class Ptracer : uint8_t { ancestor, any, none };
enum class RendezvousBy : uint8_t { automatic, read, write };
/// Which receives end when a peer is lost: those that name it, or also those from any source.
enum class PeerLoss : uint8_t { named, all };

/// The longest FI_ERDMA_JOB_KEY and auth_key.
inline constexpr size_t kMaxKeyBytes = 256;

/// The FI_ERDMA_* variables. man/fi_erdma.7.md documents each (test/check_man.sh).
struct Settings {
  util::NoticeLevel log = util::NoticeLevel::warn;  ///< FI_ERDMA_LOG=warn|off|info
  std::vector<std::string> devices;      ///< FI_ERDMA_DEVICE; empty = every ACTIVE eRDMA port
  Switch cma = Switch::automatic;        ///< FI_ERDMA_CMA=auto|on|off
  Ptracer ptracer = Ptracer::ancestor;   ///< FI_ERDMA_PTRACER=ancestor|any|none
  Switch streaming = Switch::automatic;  ///< FI_ERDMA_STREAMING=auto|on|off: streaming stores
  size_t eager_bytes = 131072;           ///< FI_ERDMA_SHM_EAGER_SIZE, 4096..131072
  unsigned hot_peers = 32;               ///< FI_ERDMA_SHM_HOT_PEERS, at least 1
  size_t unexpected_bytes = 16 << 20;    ///< FI_ERDMA_UNEXPECTED_SIZE, per peer
  /// FI_ERDMA_CONNECT_TIMEOUT; 0 = 500 ms for a peer of this host, 10 s for one behind a NIC.
  unsigned connect_timeout_ms = 0;
  unsigned tx_size = 1024;  ///< FI_ERDMA_TX_SIZE: operations in flight before -FI_EAGAIN
  unsigned rx_size = 1024;  ///< FI_ERDMA_RX_SIZE: advertised only; receives never run out

  Switch shm = Switch::automatic;       ///< FI_ERDMA_SHM=auto|off: local peers through the NIC
  Switch mr_cache = Switch::automatic;  ///< FI_ERDMA_MR_CACHE=auto|off
  transport::verbs::ForkPolicy fork =
      transport::verbs::ForkPolicy::automatic;        ///< FI_ERDMA_FORK=auto|safe|unsafe
  Switch cuda = Switch::automatic;                    ///< FI_ERDMA_CUDA=auto|off
  Switch cuda_ipc = Switch::automatic;                ///< FI_ERDMA_CUDA_IPC=auto|off
  Switch hmem_recv_flush = Switch::automatic;         ///< FI_ERDMA_HMEM_RECV_FLUSH=auto|on|off
  Switch hmem_mr_cache = Switch::automatic;           ///< FI_ERDMA_HMEM_MR_CACHE=auto|on
  RendezvousBy rendezvous = RendezvousBy::automatic;  ///< FI_ERDMA_RENDEZVOUS=auto|read|write
  size_t nic_eager_bytes = 8192;                      ///< FI_ERDMA_NIC_EAGER_SIZE, 2048..65536
  unsigned max_connections = 1024;                    ///< FI_ERDMA_MAX_CONNECTIONS, per endpoint
  unsigned peer_timeout_ms = 10'000;                  ///< FI_ERDMA_PEER_TIMEOUT
  PeerLoss peer_loss = PeerLoss::named;               ///< FI_ERDMA_PEER_LOSS=named|all
  std::string job_key;                                ///< FI_ERDMA_JOB_KEY; empty = none
  Switch stat = Switch::automatic;                    ///< FI_ERDMA_STAT=auto|off
};

/// Registers every variable with libfabric (fi_info -e lists them). fi_prov_ini calls it once.
void define_settings(fi_provider* provider) noexcept;

/// Reads the variables, and applies FI_ERDMA_LOG. A value that is not allowed is replaced by the
/// default, with one notice per process. So is a variable FI_ERDMA_* that does not exist.
Settings read_settings(fi_provider* provider);
/// The same with the provider given to define_settings(); defaults before that call.
Settings read_settings();

/// A variable and its current value, written as in the environment; empty if the value is empty.
struct ShownSetting {
  const char* name;
  std::string value;
  bool changed;  ///< the value is not the default
};
std::vector<ShownSetting> show_settings(const Settings& settings);

}  // namespace erdma::fabric
