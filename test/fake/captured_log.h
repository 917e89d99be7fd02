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

// A suite that includes this gets the provider's lines of every level instead of standard error:
// the program has an fi_log() of its own, which leads to libfabric's while it runs other suites.
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

/// Threads of the provider log, too: hold the mutex.
inline std::mutex g_log_mutex;
inline std::vector<LogLine> g_log;
/// What libfabric's log takes, as with FI_LOG_LEVEL: this level and graver ones; -1 = nothing.
inline int g_log_level = FI_LOG_DEBUG;

/// The only line logged since the last call; "" if none, "many lines" if several.
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
  // Not what libfabric itself says in the name of a provider: each variable that is read.
  if (!fi_log_enabled(provider, level, subsystem) || std::strstr(function, "fi_param")) return;
  const std::lock_guard guard(erdma::test::g_log_mutex);
  erdma::test::g_log.push_back({level, text});
}

#endif

// In each file that includes it, joined with others (test/lib/join.sh) or not.
ERDMA_REGISTER(ERDMA_SUITE_FILE, [] { ::erdma::test::g_log_captured = true; });
