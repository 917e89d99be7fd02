// How connections look outside the simulation: to TCP, and to the port mapper iwpmd.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "softerdma/cm.h"
#include "softerdma/device.h"

namespace softerdma {
namespace {

/// The beginning of each connection of standard mode, with flags, revision and a length of 0.
constexpr char kBegin[] = "MPA ID Req Frame\0\1\0";
constexpr uint16_t kMapperPort = 3935;

/// Returns false, and hangs up, if the caller sent data or left. A real driver waits for its own
/// request and hangs up as well.
bool goes_on(int caller) {
  char bytes[64];
  const bool silent = recv(caller, bytes, sizeof bytes, MSG_DONTWAIT) < 0 &&
                      (errno == EAGAIN || errno == EWOULDBLOCK);
  if (!silent) close(caller);
  return silent;
}

}  // namespace

bool CmState::meet_callers() {
  bool listens = false;
  for (const auto& [number, id] : ids) {
    if (id->stage != CmStage::listening || !id->in_tcp) continue;
    listens = true;
    for (int fd; (fd = accept4(id->port_holder, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;)
      x_callers.push_back(fd);
  }
  std::erase_if(x_callers, [](int caller) { return !goes_on(caller); });
  return listens || !x_callers.empty();
}

void CmState::close_outside() {
  for (int caller : x_callers) close(caller);
  if (x_mapper >= 0) close(x_mapper);
}

bool CmState::maps_ports() {
  const bool maps = std::any_of(x_process.devices.begin(), x_process.devices.end(),
                                [](const auto& d) { return d->config.limits.port_mapper != 0; });
  if (!maps || x_mapper >= 0) return maps;
  // Other programs find the daemon by this socket. One process of each host has it.
  x_mapper = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(kMapperPort);
  static_cast<void>(bind(x_mapper, reinterpret_cast<const sockaddr*>(&at), sizeof at));
  return maps;
}

void cm_listen_in_tcp(CmId& id) {
  if (id.port_holder < 0 || listen(id.port_holder, 16) != 0) return;
  id.in_tcp = true;
  id.process->tell(MessageType::kick);  // the thread must accept callers
}

void cm_knock(const sockaddr_in& at) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return;
  const timeval most{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most);
  if (connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0)
    static_cast<void>(send(fd, kBegin, sizeof kBegin, MSG_NOSIGNAL));
  close(fd);
}

}  // namespace softerdma
