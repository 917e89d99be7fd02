#pragma once

#include <cstdint>

#include "util/socket_address.h"

namespace erdma::protocol {

/// Maps fi_addr_t to addresses and back. fabric/av implements it. The caller holds the domain lock.
class AddressBook {
 public:
  /// Returns the address in canonical form; it is unset if nothing is inserted at `fi_addr`.
  virtual util::SocketAddress address_of(uint64_t fi_addr) const noexcept = 0;
  /// Returns the lowest fi_addr of an address that was inserted several times, and
  /// FI_ADDR_NOTAVAIL (UINT64_MAX) if it was not inserted.
  virtual uint64_t fi_addr_of(const util::SocketAddress& canonical) const noexcept = 0;

 protected:
  ~AddressBook() = default;
};

}  // namespace erdma::protocol
