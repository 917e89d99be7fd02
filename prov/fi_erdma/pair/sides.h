#pragma once

#include <functional>
#include <span>
#include <string>

#include "fi_erdma/descriptor.h"
#include "fi_erdma/pair/options.h"

namespace fi_erdma::pair {

/// The connection over which the sides exchange names and results. It owns its socket. The process
/// ends with kFailed if the peer is gone, or silent for options.limit_s.
class Channel {
 public:
  /// Calls `drive` repeatedly while it waits, since a peer may need progress of this side.
  using Drive = std::function<void()>;

  Channel(int socket, double limit_s) noexcept : x_socket(socket), x_limit_s(limit_s) {}

  void send(const std::string& message);
  std::string receive(const Drive& drive = {});
  /// Whether receive() would return at once.
  bool ready() const;
  /// Whether the other side has closed the connection or ended.
  bool gone() const noexcept;
  /// Both sides call it: each sends a message and returns that of the other side.
  std::string swap(const std::string& message, const Drive& drive = {});
  void barrier(const Drive& drive = {}) { (void)swap("barrier", drive); }

 private:
  void take(std::span<char> bytes, const Drive& drive);

  const Descriptor x_socket;
  const double x_limit_s;
};

/// Converts objects to bytes, for a Channel between processes of the same build.
template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
template <class T>
T from_bytes(const std::string& bytes) {
  if (bytes.size() != sizeof(T)) fail("the other side is another version of this program");
  T value;
  __builtin_memcpy(&value, bytes.data(), sizeof value);
  return value;
}

enum class Side { server, client };
using Body = std::function<int(Side, Channel&)>;

/// An exit status besides those of Status: the results could not be printed.
inline constexpr int kUnwritten = 70;  // EX_SOFTWARE

/// Runs the body as server, client or both. Returns its exit status, of two sides the worse one. If
/// a signal kills a side, this process ends like after any other failure. The caller must not have
/// called libfabric before. `task` describes the options that must be the same on both sides.
int run_sides(const std::string& task, const Options& options, const Body& body);

/// Runs the body in a process of its own and returns its exit status. If a signal ends the process,
/// this is printed, and the text is stored in `death`.
int run_alone(const std::function<int()>& body, std::string* death = nullptr);

/// Forks a child that dies with this process. The body returns the child's exit status.
int spawn(const std::function<int()>& body);

double now_s() noexcept;

}  // namespace fi_erdma::pair
