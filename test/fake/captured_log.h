#ifndef ERDMA_CAPTURED_LOG_H
#define ERDMA_CAPTURED_LOG_H

#include <dlfcn.h>

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <rdma/fabric.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include "libcheck.h"

// A suite that includes this header gets the provider's log lines of every level instead of
// standard error. The program has an fi_log() of its own, which calls libfabric's for other suites.
namespace erdma::test {

struct LogLine {
  fi_log_level level;
  std::string text;
};

inline bool g_log_captured = false;

template <typename Function>
Function* libfabrics(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

/// Hold this mutex, as threads of the provider log, too.
inline std::mutex g_log_mutex;
inline std::vector<LogLine> g_log;
/// Highest level that the log takes, like FI_LOG_LEVEL; -1 = none.
inline int g_log_level = FI_LOG_DEBUG;

/// Returns the only line logged since the last call; "" if none, "many lines" if several.
inline std::string only_log_line() {
  const std::lock_guard guard(g_log_mutex);
  const std::string text = g_log.empty() ? "" : g_log.size() == 1 ? g_log[0].text : "many lines";
  g_log.clear();
  return text;
}

inline bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

}  // namespace erdma::test

extern "C" [[gnu::weak]] int fi_log_enabled(const fi_provider* provider, fi_log_level level,
                                            fi_log_subsys subsystem) {
  static const auto real = erdma::test::libfabrics(fi_log_enabled, "fi_log_enabled");
  if (!erdma::test::g_log_captured) return real(provider, level, subsystem);
  return int(level) <= erdma::test::g_log_level && provider && provider->name &&
         std::strcmp(provider->name, "erdma") == 0;
}

extern "C" [[gnu::weak]] void fi_log(const fi_provider* provider, fi_log_level level,
                                     fi_log_subsys subsystem, const char* function, int line,
                                     const char* format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  static const auto real = erdma::test::libfabrics(fi_log, "fi_log");
  if (!erdma::test::g_log_captured)
    return real(provider, level, subsystem, function, line, "%s", text);
  // Lines of libfabric about the provider's variables do not count.
  if (!fi_log_enabled(provider, level, subsystem) || std::strstr(function, "fi_param")) return;
  const std::lock_guard guard(erdma::test::g_log_mutex);
  erdma::test::g_log.push_back({level, text});
}

#endif

// Runs for each file that includes this header, joined with others (test/lib/join.sh) or not.
ERDMA_REGISTER(ERDMA_SUITE_FILE, [] { ::erdma::test::g_log_captured = true; });
