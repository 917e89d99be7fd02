#include "path_bytes.h"

#include <ctype.h>
#include <strings.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>

#include <rdma/fi_ext.h>
#include <rdma/providers/fi_prov.h>

namespace erdma::programs {
namespace {

struct Heard {
  std::mutex mutex;  // a provider's threads log too
  PathBytes bytes;
  int shown_level = -1;  ///< of FI_LOG_LEVEL
};
Heard& heard() {
  static Heard one;
  return one;
}

int level_of_environment() {
  static constexpr const char* kNames[] = {"warn", "trace", "info", "debug"};
  const char* wanted = std::getenv("FI_LOG_LEVEL");
  for (int i = 0; wanted && i < 4; ++i) {
    if (strcasecmp(wanted, kNames[i]) == 0) return i;
  }
  return wanted ? 0 : -1;
}

bool shown(fi_log_level level, uint64_t flags) {
  return int(level) <= heard().shown_level && !(flags & FI_LOG_PROV_FILTERED);
}

/// Whether the line that this thread asked enabled() for, which comes next, goes to stderr too:
/// log() is not told what FI_LOG_PROV filters.
thread_local bool t_shown = false;

int enabled(const fi_provider*, fi_log_level level, fi_log_subsys subsystem, uint64_t flags) {
  t_shown = shown(level, flags);
  return t_shown || (level <= FI_LOG_INFO && subsystem == FI_LOG_EP_CTRL);
}
int ready(const fi_provider* provider, fi_log_level level, fi_log_subsys subsystem, uint64_t flags,
          uint64_t*) {
  return enabled(provider, level, subsystem, flags);
}
void log(const fi_provider* provider, fi_log_level, fi_log_subsys, const char* function, int line,
         const char* message) {
  {
    const std::lock_guard lock(heard().mutex);
    (void)add_line(heard().bytes, message);
  }
  if (!t_shown) return;
  std::fprintf(stderr, "libfabric:%d:%s:%s():%d %s", int(::getpid()), provider->name, function,
               line, message);
}

/// The start of the number before `what`; null: it is not in the line.
const char* number_before(const char* line, const char* what) noexcept {
  const char* end = std::strstr(line, what);
  if (!end) return nullptr;
  while (end > line && isdigit(static_cast<unsigned char>(end[-1]))) --end;
  return end;
}

}  // namespace

PathBytes& PathBytes::operator+=(const PathBytes& other) noexcept {
  told = told || other.told;
  rings += other.rings;
  cma_read += other.cma_read;
  cma_write += other.cma_write;
  copied += other.copied;
  refusals += other.refusals;
  nic_packets += other.nic_packets;
  nic_read += other.nic_read;
  nic_write += other.nic_write;
  return *this;
}

void PathBytes::print(const char* whose) const {
  if (!told) {
    std::printf("%s: the provider does not tell which way the bytes went\n", whose);
    return;
  }
  std::printf("%s: shared memory: %" PRIu64 " bytes through rings, %" PRIu64
              " by CMA read, %" PRIu64 " by CMA write, %" PRIu64 " copied; CMA refused %" PRIu64
              " times\n",
              whose, rings, cma_read, cma_write, copied, refusals);
  std::printf("%s: NIC: %" PRIu64 " bytes in packets, %" PRIu64 " by RDMA READ, %" PRIu64
              " by RDMA WRITE\n",
              whose, nic_packets, nic_read, nic_write);
}

bool add_line(PathBytes& bytes, const char* line) noexcept {
  PathBytes found;
  uint64_t copied_out = 0;
  found.told = true;
  const char* shm = number_before(line, " bytes through rings");
  if (shm && std::sscanf(shm,
                         "%" SCNu64 " bytes through rings, %" SCNu64 " by CMA read, %" SCNu64
                         " by CMA write, %" SCNu64 " copied in, %" SCNu64 " copied out, %" SCNu64
                         " CMA refusals",
                         &found.rings, &found.cma_read, &found.cma_write, &found.copied,
                         &copied_out, &found.refusals) == 6) {
    bytes += found;
    return true;
  }
  const char* nic = number_before(line, " bytes in packets");
  if (nic && std::sscanf(nic,
                         "%" SCNu64 " bytes in packets, %" SCNu64 " by RDMA READ, %" SCNu64
                         " by RDMA WRITE",
                         &found.nic_packets, &found.nic_read, &found.nic_write) == 3) {
    bytes += found;
    return true;
  }
  return false;
}

void listen_to_log() {
  static fi_ops_log calls{};
  static fid_logging logging{};
  heard().shown_level = level_of_environment();
  calls.enabled = enabled;
  calls.ready = ready;
  calls.log = log;
  logging.ops = &calls;
  if (const int rc = fi_import_log(FI_VERSION(1, 17), 0, &logging)) {
    std::fprintf(stderr, "fi_import_log: %s: what the provider counts stays unknown\n",
                 fi_strerror(-rc));
  }
}

PathBytes bytes_told() {
  const std::lock_guard lock(heard().mutex);
  return heard().bytes;
}

PathBytes bytes_of_both(Channel& channel) {
  PathBytes bytes = bytes_told();
  return bytes += from_bytes<PathBytes>(channel.swap(bytes_of(bytes)));
}

std::optional<uint64_t> nic_sent(const std::string& device) {
  const std::string folder = "/sys/class/infiniband/" + device + "/ports/1/hw_counters/";
  for (const char* name : {"hw_tx_bytes_cnt", "tx_bytes"}) {
    std::ifstream file(folder + name);
    uint64_t value = 0;
    if (file >> value) return value;
  }
  return std::nullopt;
}

}  // namespace erdma::programs
