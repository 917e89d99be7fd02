#pragma once

#include <cstdint>

#include "util/socket_address.h"

namespace erdma::protocol {

/// Maps fi_addr_t to addresses, both ways; implemented by fabric/av. The caller holds the domain
/// lock.
class AddressBook {
 public:
  /// In canonical form; unset if nothing is inserted there.
  virtual util::SocketAddress address_of(uint64_t fi_addr) const noexcept = 0;
  /// The lowest fi_addr if the address was inserted several times; FI_ADDR_NOTAVAIL (UINT64_MAX)
  /// if it was not inserted.
  virtual uint64_t fi_addr_of(const util::SocketAddress& canonical) const noexcept = 0;

 protected:
  ~AddressBook() = default;
};

}  // namespace erdma::protocol
