#pragma once

#include <string>

#include "fi_erdma/pair/endpoint.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {

/// The echo server never posts receives for tags with this bit.
inline constexpr uint64_t kUnheard = uint64_t{1} << 63;

/// The data that a client needs to reach a server.
struct Contact {
  char name[256] = {};
  size_t name_length = 0;
  uint64_t remote = 0, key = 0;  ///< a window that clients may read and write
};

/// Runs an endpoint that sends every message of the client back and has a window of `largest`
/// bytes. Sends its Contact to the parent process, and returns when the parent sends a message.
int serve_echoes(const Options& options, const std::string& client, size_t largest,
                 Channel& parent);

}  // namespace fi_erdma::pair
