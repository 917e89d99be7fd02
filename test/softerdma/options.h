#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// The settings in the SOFTERDMA_* variables. README.md describes each.
namespace softerdma {

enum class Personality : uint8_t { standard, compat };
enum class Flush : uint8_t { full, half, none };

/// Limits and properties of one device. Each member is an entry of the table in options.cc, with a
/// variable SOFTERDMA_<NAME>. It can also be set by name=value in a device's entry of
/// SOFTERDMA_DEVICES.
struct Limits {
  uint64_t max_qp;
  uint64_t max_qp_wr;
  uint64_t max_cqe;
  uint64_t max_mr;   ///< regions of this process
  uint64_t host_mr;  ///< regions of all processes of the host, as the driver counts; 0: any number
  uint64_t max_mr_size;
  uint64_t region_bits;  ///< number of bits of a region's length that the adapter is told
  uint64_t max_msg;
  uint64_t max_send_sge;
  uint64_t max_recv_sge;
  uint64_t max_inline;
  uint64_t max_rd_atom;
  uint64_t atomics;
  uint64_t memlock;       ///< bytes that the process may have registered
  uint64_t private_data;  ///< bytes that a connect request may carry
  uint64_t comp_vectors;
  uint64_t retry_ms;    ///< time until an unanswered packet ends in RETRY_EXC
  uint64_t command_us;  ///< duration of each command of the adapter
  uint64_t connect_ms;  ///< time until an unanswered handshake ends in UNREACHABLE
  uint64_t
      small_send;    ///< largest payload that goes through shared memory instead of a system call
  uint64_t refused;  ///< 1: an unused port looks refused; 0: it looks like a reset
  uint64_t destroy_waits;  ///< 1: destroying waits for the outcome of a connect
  uint64_t first_port;     ///< first port that rdma_cm chooses
  uint64_t ports;          ///< number of ports that rdma_cm chooses from
  uint64_t tcp;            ///< 1: connections of standard mode are seen in TCP
  uint64_t port_mapper;    ///< 1: iwpmd runs on this host
  uint64_t loopback;       ///< 1: rdma_bind_addr() takes 127.0.0.1 for any address
  uint64_t late;     ///< 1: a thread executes all work requests, as late as a real device would
  uint64_t peermem;  ///< 1: ibv_reg_mr() takes memory of a (simulated) GPU
  uint64_t dmabuf;   ///< 1: there is ibv_reg_dmabuf_mr()
  uint64_t posted;   ///< stores to memory of a GPU arrive late: posted.h
  uint64_t passive_first;  ///< 1: the passive side may send before it has heard the active side
};

struct DeviceConfig {
  std::string name;
  uint32_t ip;  ///< network byte order
  bool up;
  Personality personality;
  Flush flush;
  Limits limits;
};

/// Returns the devices. The list is only empty if SOFTERDMA_DEVICES is "none" or has no valid
/// entry.
std::vector<DeviceConfig> configured_devices();
/// Returns the folder that all processes of one fabric share.
std::string state_folder();
/// Returns the address in the form "10.8.0.1".
std::string ip_text(uint32_t ip);
/// Parses a number with an optional K, M or G. Returns `fallback` if the text is no number.
uint64_t parse_number(const std::string& text, uint64_t fallback);

}  // namespace softerdma
