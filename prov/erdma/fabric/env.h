#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

struct fi_provider;

namespace erdma::fabric {

enum class Switch : uint8_t { automatic, on, off };
enum class Ptracer : uint8_t { ancestor, any, none };

/// The FI_ERDMA_* variables. man/fi_erdma.7.md documents each (test/check_man.sh).
struct Settings {
  std::vector<std::string> devices;      ///< FI_ERDMA_DEVICE; empty = every ACTIVE eRDMA port
  Switch cma = Switch::automatic;        ///< FI_ERDMA_CMA=auto|off
  Ptracer ptracer = Ptracer::ancestor;   ///< FI_ERDMA_PTRACER=ancestor|any|none
  Switch streaming = Switch::automatic;  ///< FI_ERDMA_STREAMING=auto|on|off: streaming stores
  size_t eager_bytes = 8192;             ///< FI_ERDMA_SHM_EAGER_SIZE, 4096..16384
  unsigned hot_peers = 32;               ///< FI_ERDMA_SHM_HOT_PEERS, at least 1
  size_t unexpected_bytes = 1 << 20;     ///< FI_ERDMA_UNEXPECTED_SIZE, per peer
  unsigned connect_timeout_ms = 500;     ///< FI_ERDMA_CONNECT_TIMEOUT
  unsigned tx_size = 1024;  ///< FI_ERDMA_TX_SIZE: operations in flight before -FI_EAGAIN
  unsigned rx_size = 1024;  ///< FI_ERDMA_RX_SIZE: advertised only; receives never run out
};

/// Registers every variable with libfabric (fi_info -e lists them). Once, from fi_prov_ini.
void define_settings(fi_provider* provider) noexcept;

/// Reads them. A value out of range is replaced by the default with one warning per process.
Settings read_settings(fi_provider* provider);
/// The same, of the provider given to define_settings(); defaults before that.
Settings read_settings();

}  // namespace erdma::fabric
