#pragma once

#include <arpa/inet.h>
#include <stdlib.h>

#include <memory>  // before check.h, whose macro fail() breaks it
#include <string>

#include <rdma/fabric.h>
#include <rdma/fi_errno.h>

#include "fabric/env.h"
#include "fabric/info.h"
#include "fabric/info_offer.h"
#include "fake/captured_log.h"
#include "libcheck.h"
#include "util/socket_address.h"

// Helpers of the tests of fi_getinfo. Include in one file.
namespace erdma::test {

using fabric::InfoPtr;
using util::SocketAddress;

inline constexpr uint32_t kVersion = FI_VERSION(1, 17);

inline fi_provider g_provider{};
inline constexpr uint64_t kComm = FI_LOCAL_COMM | FI_REMOTE_COMM;

/// Runs once, in the parent of all tests, because libfabric's initialization is slow.
inline void define() {
  fi_param* params = nullptr;
  int count = 0;
  fi_getparams(&params, &count);
  fi_freeparams(params);
  g_provider.name = "erdma";
  fabric::define_settings(&g_provider);
}

/// Runs in the forked child of each test: single-host operation without a warning.
inline void set_up() {
  setenv("FI_ERDMA_DEVICE", "shm", 1);
  unsetenv("FI_PROVIDER");
  g_log.clear();
}

inline InfoPtr make_hints() {
  InfoPtr hints(fi_allocinfo());
  ck_assert_ptr_nonnull(hints.get());
  return hints;
}

inline int query(uint32_t version, const fi_info* hints, InfoPtr& result,
                 const char* node = nullptr, const char* service = nullptr, uint64_t flags = 0) {
  fi_info* info = nullptr;
  const int rc = fabric::getinfo(version, node, service, flags, hints, &info);
  result.reset(info);
  return rc;
}

/// ck_assert_str_eq() would keep a pointer into a temporary.
inline void check_text(const std::string& text, const char* expected) {
  ck_assert_str_eq(text.c_str(), expected);
}

inline SocketAddress source_of(const fi_info& info) {
  return SocketAddress::from_sockaddr(info.src_addr, info.src_addrlen);
}

inline SocketAddress destination_of(const fi_info& info) {
  return SocketAddress::from_sockaddr(info.dest_addr, info.dest_addrlen);
}

}  // namespace erdma::test
