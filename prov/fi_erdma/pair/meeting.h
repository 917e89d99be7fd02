#pragma once

#include <cstdint>
#include <string>

#include "fi_erdma/pair/options.h"

namespace fi_erdma::pair {

/// How far this process came in finding the other side.
enum class Meeting : uint8_t {
  none,       ///< it did not look for one
  nobody,     ///< nobody listens there, or nobody came
  silent,     ///< the host, or what listens there, says nothing in time
  stranger,   ///< what answers is no fi_erdma
  different,  ///< a fi_erdma of another version, or one that was asked something else
  met
};
Meeting meeting() noexcept;

/// A socket to the other side, which was asked for the same task; it was told so, too. Any other
/// end ends the process. The side that serves lets strangers pass and goes on, up to its limit; of
/// them it takes few in a second, and few bytes of each.
int meet(const std::string& task, const Options& options);

/// How long each send() may block.
void limit_sending(int socket, double seconds);

}  // namespace fi_erdma::pair
