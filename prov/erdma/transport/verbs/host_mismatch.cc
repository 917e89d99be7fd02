#include "transport/verbs/host_mismatch.h"

#include <cstdio>
#include <cstring>
#include <string>

#include <rdma/fi_errno.h>

#include "transport/guarded.h"
#include "util/error_text.h"
#include "util/fd.h"
#include "util/log.h"

namespace erdma::transport::verbs {
namespace {

constexpr unsigned kMapperPort = 3935;

}  // namespace

bool port_mapper_runs(const char* table) noexcept {
  const util::File file = util::open_to_read(table);
  char line[256];
  unsigned port = 0;
  while (file && std::fgets(line, sizeof(line), file.get()))
    if (std::sscanf(line, " %*u: %*[0-9A-Fa-f]:%x", &port) == 1 && port == kMapperPort) return true;
  return false;
}

bool begins_as_iwarp(std::span<const std::byte> bytes) noexcept {
  // from "MPA ID Req Frame": as many bytes as are read first of a hello
  constexpr char kBegin[] = "MPA ID R";
  constexpr size_t kBytes = sizeof(kBegin) - 1;
  return bytes.size() >= kBytes && std::memcmp(bytes.data(), kBegin, kBytes) == 0;
}

void tell_of_iwarp(const util::SocketAddress& from) noexcept {
  guarded("answering a connection request", [&] {
    const std::string name = from.set() ? from.host_string() : "a peer";
    ERDMA_NOTICE(host_mismatch, EP_CTRL,
                 "the NIC of %s is in standard mode (iWARP), and that of this host in compat mode: "
                 "they cannot talk to each other. Put the NICs of all hosts into one mode",
                 name.c_str());
  });
}

void tell_why_unreached(const util::SocketAddress& peer, int status, bool standard,
                        bool mapper_runs) noexcept {
  const util::AddressText name = peer.to_string();
  const util::ErrorText error(-status);
  // What a connect to another port than that of the NIC ends in.
  const bool nobody =
      status == -FI_ECONNREFUSED || status == -FI_ECONNRESET || status == -FI_ETIMEDOUT;
  if (standard && mapper_runs && nobody)
    ERDMA_NOTICE(host_mismatch, EP_CTRL,
                 "%s is not reached (%s), and the port mapper iwpmd runs on this host, which sends "
                 "connections to other ports than the NIC listens on. Stop it on all hosts: "
                 "systemctl disable --now iwpmd",
                 name.c_str(), error.c_str());
  else if (standard && status == -FI_ECONNREFUSED)
    ERDMA_NOTICE(host_mismatch, EP_CTRL,
                 "nobody listens at %s. If its endpoint is there: the port mapper iwpmd runs on "
                 "its host (systemctl disable --now iwpmd), or its NIC is in compat mode "
                 "(ibv_devinfo: transport InfiniBand), which cannot talk to the standard mode of "
                 "this one",
                 name.c_str());
  else if (!standard && status == -FI_ECONNRESET)
    ERDMA_NOTICE(host_mismatch, EP_CTRL,
                 "%s hangs up without a word. If its endpoint is there, its NIC is in standard "
                 "mode (ibv_devinfo: transport iWARP), which cannot talk to the compat mode of "
                 "this one",
                 name.c_str());
}

}  // namespace erdma::transport::verbs
