#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

/// What these programs share: options as fabtests has them, two sides that find each other over
/// TCP, an endpoint of any provider, data that can be checked, and what the provider says of its
/// paths.
namespace erdma::programs {

/// Exit statuses. Not supported: this host or provider lacks what the test needs, so nothing was
/// shown.
enum Status { kPassed = 0, kFailed = 1, kNotSupported = 77 };

/// Prints "<program>: <message>" and ends this process with kFailed.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Likewise with kNotSupported.
[[noreturn]] void not_supported(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Fails unless rc is 0; rc is a negative fi_errno.
void must(long rc, const char* what);

struct Options {
  std::string provider;         ///< -p; else FI_PROVIDER, else "erdma"
  std::string domain;           ///< -d
  std::string source;           ///< -s: an address of the NIC
  std::string server;           ///< what follows the options; empty: this is the server
  std::string port = "9228";    ///< -B, -P: of the connection over which the sides find each other
  int iterations = 0;           ///< -I; 0: as the program likes
  std::vector<size_t> sizes;    ///< -S, bytes
  std::string memory = "host";  ///< -D: host or cuda
  double limit_s = 60;          ///< -T: how long to wait for anything
  bool pair = false;            ///< --pair: both sides on this host
  bool nic_only = false;        ///< --nic-only: FI_OPT_SHARED_MEMORY_PERMITTED = false
  bool spoil = false;           ///< --spoil: one wrong byte, so that the check must fail
};

/// A long option of one program.
struct Extra {
  const char* name;
  const char* value;  ///< what the help calls its argument; null: it has none
  const char* help;
  std::function<bool(const char*)> take;  ///< false: not a value that is allowed
};

struct Program {
  const char* what;     ///< for the help
  size_t largest_size;  ///< of "-S all"
  bool alone = false;   ///< has no server
  std::vector<Extra> extras = {};
  std::vector<size_t> sizes = {};  ///< without -S; empty: all
};

/// Ends the process at -h and at what it does not understand.
Options parse(int argc, char** argv, const Program& program);

/// 0, 1 and every power of two up to `largest` with its neighbours.
std::vector<size_t> all_sizes(size_t largest);
/// A number with K, M or G; false if it is none.
bool parse_size(const char* text, size_t& size);

}  // namespace erdma::programs
