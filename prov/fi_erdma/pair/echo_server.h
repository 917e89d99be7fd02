#pragma once

#include <string>

#include "fi_erdma/pair/endpoint.h"
#include "fi_erdma/pair/sides.h"

namespace fi_erdma::pair {

/// Tags with this bit are for receives that the echo server never posts.
inline constexpr uint64_t kUnheard = uint64_t{1} << 63;

/// What the client must know of a server.
struct Contact {
  char name[256] = {};
  size_t name_length = 0;
  uint64_t remote = 0, key = 0;  ///< of a window that may be read and written
};

/// A process with an endpoint that sends every message of the client back, and has a window of
/// `largest` bytes. Tells its Contact to the one who forked it, and ends when that one says
/// something.
int serve_echoes(const Options& options, const std::string& client, size_t largest,
                 Channel& parent);

}  // namespace fi_erdma::pair
