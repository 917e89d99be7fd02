#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

/// Moves bytes between two processes or hosts: two sides find each other over TCP, each opens an
/// endpoint of any provider, and each checks the data. A failure ends the process, so each side
/// runs in a process of its own.
namespace fi_erdma::pair {

/// Exit statuses. Not tried: this host or provider lacks something that the test needs.
enum Status { kPassed = 0, kNotTried = 1, kFailed = 2 };

/// Prints "fi_erdma[PID]: <message>" and ends this process with kFailed.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// The same with kNotTried.
[[noreturn]] void not_supported(const char* format, ...) __attribute__((format(printf, 1, 2)));
/// Fails unless rc is 0; rc is a negative fi_errno.
void must(long rc, const char* what);
/// Sets a function that is called before a failure ends the process. It may end the process itself.
void before_end(std::function<void(Status, const char*)> tell);

struct Options {
  std::string provider;  ///< FI_PROVIDER, or "erdma"
  std::string domain;    ///< empty: any
  std::string source;    ///< an address of the NIC; empty: any
  std::string peer;      ///< the host where the other side serves
  bool serve = false;  ///< wait for the other side. Without `serve` and `peer` both sides run here
  std::string port = "9228";    ///< TCP port over which the sides find each other
  int iterations = 0;           ///< 0: the default of the test
  std::vector<size_t> sizes;    ///< bytes
  std::string memory = "host";  ///< host or cuda
  double limit_s = 60;          ///< longest time of each wait
  bool nic_only = false;        ///< FI_OPT_SHARED_MEMORY_PERMITTED = false
  bool announce = true;         ///< print that this side waits
  bool spoil = false;           ///< change one byte, so that the check must fail
};

/// Further options of `fi_erdma bench`.
struct BenchOptions : Options {
  std::string operation = "message";  ///< message, read or write
  std::string path;                   ///< expected path; empty: any
  double share = 100;                 ///< percent of the bytes that must take it
};

/// Further options of `fi_erdma test`.
struct TestOptions : Options {
  std::vector<std::string> names;  ///< empty: all
  // Options of refused-cma.
  std::string calls = "readv,writev";
  std::string side = "both";
  std::string error = "EPERM";
  // Options of local-read.
  size_t burst = 3000;
  std::string into = "host";
  // Options of peer-death.
  double limit_ms = 15000;
  std::string signal = "KILL";
};

/// 0, 1, and every power of two up to `largest` with its neighbours.
std::vector<size_t> all_sizes(size_t largest);
/// The largest size of one operation, in bytes.
inline constexpr size_t kLargestSize = size_t(1) << 40;
/// Parses a decimal number with K, M or G; returns false if it is malformed or too large.
bool parse_size(const char* text, size_t& size);
/// "8,64 bytes".
std::string sizes_text(const Options& options);
/// FI_PROVIDER, or erdma.
std::string wanted_provider();

}  // namespace fi_erdma::pair
