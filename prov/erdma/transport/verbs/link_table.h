#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "transport/verbs/link.h"

namespace erdma::transport::verbs {

/// The links of one endpoint, by the address of the peer. Polling thread, except for commit() and
/// claim().
class LinkTable {
 public:
  VerbsLink* find(const util::SocketAddress& address) const noexcept {
    const auto found = x_links.find(address);
    return found == x_links.end() ? nullptr : found->second.get();
  }
  VerbsLink& add(std::unique_ptr<VerbsLink> link) {
    const std::lock_guard guard(x_mutex);
    const util::SocketAddress& address = link->address();
    return *x_links.emplace(address, std::move(link)).first->second;
  }
  template <typename Function>
  void for_each(Function&& function) noexcept {
    for (const auto& [address, link] : x_links) function(*link);
  }

  /// commit() and claim() of the Session of the link to `peer`; 0 if there is none. Any thread.
  uint64_t commit(const util::SocketAddress& peer) noexcept {
    const std::lock_guard guard(x_mutex);
    VerbsLink* const link = find(peer);
    return link ? link->session.commit() : 0;
  }
  uint64_t claim(const util::SocketAddress& peer) noexcept {
    const std::lock_guard guard(x_mutex);
    const VerbsLink* const link = find(peer);
    return link ? link->session.claim() : 0;
  }

 private:
  std::mutex x_mutex;  ///< guards changes, and the connector's look-ups
  std::unordered_map<util::SocketAddress, std::unique_ptr<VerbsLink>, util::SocketAddressHash>
      x_links;
};

}  // namespace erdma::transport::verbs
