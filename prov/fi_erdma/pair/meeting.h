#pragma once

#include <cstdint>
#include <string>

#include "fi_erdma/pair/options.h"

namespace fi_erdma::pair {

/// How far this process came in meeting the other side.
enum class Meeting : uint8_t {
  none,       ///< it did not try
  nobody,     ///< no program listens there, or none connected
  silent,     ///< the host, or the program that listens there, does not answer in time
  stranger,   ///< the program that answers is not fi_erdma
  different,  ///< fi_erdma of another version, or with another task
  met
};
Meeting meeting() noexcept;

/// Returns a socket to the other side, after both sides have checked that they have the same task.
/// Ends the process on any failure. The serving side turns strangers away, up to its time limit. It
/// accepts few connections in a second, and few bytes from each.
int meet(const std::string& task, const Options& options);

/// Limits how long each send() may block.
void limit_sending(int socket, double seconds);

}  // namespace fi_erdma::pair
