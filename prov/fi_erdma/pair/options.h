#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

/// What moves bytes between two processes, or hosts: two sides that find each other over TCP, an
/// endpoint of any provider on each, and data that can be checked. A trouble ends the process, so
/// each side is one of its own.
namespace fi_erdma::pair {

/// Exit statuses. Not tried: this host or provider lacks what the test needs, so nothing was shown.
enum Status { kPassed = 0, kNotTried = 1, kFailed = 2 };

/// Prints "fi_erdma[PID]: <message>" and ends this process with kFailed.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Likewise with kNotTried.
[[noreturn]] void not_supported(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Fails unless rc is 0; rc is a negative fi_errno.
void must(long rc, const char* what);
/// From now on `tell` is called before a trouble ends the process. It may end it itself.
void before_end(std::function<void(Status, const char*)> tell);

struct Options {
  std::string provider;         ///< FI_PROVIDER, else "erdma"
  std::string domain;           ///< empty: any
  std::string source;           ///< an address of the NIC; empty: any
  std::string peer;             ///< the host where the other side serves
  bool serve = false;           ///< this is the side that waits for the other. Neither: both here
  std::string port = "9228";    ///< TCP, of the connection over which the sides find each other
  int iterations = 0;           ///< 0: as the test likes
  std::vector<size_t> sizes;    ///< bytes
  std::string memory = "host";  ///< host or cuda
  double limit_s = 60;          ///< how long to wait for anything
  bool nic_only = false;        ///< FI_OPT_SHARED_MEMORY_PERMITTED = false
  bool announce = true;         ///< say that this side waits
  bool spoil = false;           ///< one wrong byte, so that the check must fail
};

/// What `fi_erdma bench` is asked besides.
struct BenchOptions : Options {
  std::string operation = "message";  ///< message, read or write
  std::string path;                   ///< that is expected; empty: any
  double share = 100;                 ///< percent that must go there
};

/// What `fi_erdma test` is asked besides.
struct TestOptions : Options {
  std::vector<std::string> names;  ///< empty: all
  // Of refused-cma.
  std::string calls = "readv,writev";
  std::string side = "both";
  std::string error = "EPERM";
  // Of local-read.
  size_t burst = 3000;
  std::string into = "host";
  // Of peer-death.
  double limit_ms = 15000;
  std::string signal = "KILL";
};

/// 0, 1 and every power of two up to `largest` with its neighbours.
std::vector<size_t> all_sizes(size_t largest);
/// What the sizes of one operation may be, bytes.
inline constexpr size_t kLargestSize = size_t(1) << 40;
/// A decimal number with K, M or G; false if it is none, or too large.
bool parse_size(const char* text, size_t& size);
/// "8,64 bytes".
std::string sizes_text(const Options& options);
/// FI_PROVIDER, or erdma.
std::string wanted_provider();

}  // namespace fi_erdma::pair
