#pragma once

#include <functional>
#include <span>
#include <string>

#include "fi_erdma/pair/options.h"

namespace fi_erdma::pair {

/// The connection over which the sides tell each other names and results. Owns its socket. A peer
/// that is gone, or silent for options.limit_s, ends the process with kFailed.
class Channel {
 public:
  /// While waiting, `drive` is called again and again: under manual progress a peer may need it.
  using Drive = std::function<void()>;

  Channel(int socket, double limit_s) noexcept : x_socket(socket), x_limit_s(limit_s) {}
  ~Channel();
  Channel(const Channel&) = delete;

  void send(const std::string& message);
  std::string receive(const Drive& drive = {});
  /// Whether receive() would find something at once.
  bool ready() const;
  /// Whether the other side has closed it, or ended.
  bool gone() const noexcept;
  /// Both sides give a message and get the other's.
  std::string swap(const std::string& message, const Drive& drive = {});
  void barrier(const Drive& drive = {}) { (void)swap("barrier", drive); }

 private:
  void take(std::span<char> bytes, const Drive& drive);

  const int x_socket;
  const double x_limit_s;
};

/// As bytes, for a Channel between processes of the same build.
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

/// A status besides those of Status: what was found could not be printed.
inline constexpr int kUnwritten = 70;  // EX_SOFTWARE

/// Runs the body as server or client, or as both. Returns the exit status: of both, the
/// worse; the death of a side by a signal ends this process as any trouble does. Nothing of
/// libfabric may have been called before. `task` says what this side was asked and the other one
/// must be asked, too.
int run_sides(const std::string& task, const Options& options, const Body& body);

/// Runs the body in a process of its own; returns its exit status. `death` gets the words for the
/// signal that ended it, which are said, too.
int run_alone(const std::function<int()>& body, std::string* death = nullptr);

/// A child that dies with this process; the body's value is its exit status.
int spawn(const std::function<int()>& body);

double now_s() noexcept;

}  // namespace fi_erdma::pair
