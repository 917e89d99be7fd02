#pragma once

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "libcheck.h"
#include "transport/verbs/device.h"
#include "transport/verbs/device_list.h"

namespace erdma::test {

/// The first device that can be used; null = none.
inline std::unique_ptr<transport::verbs::Device> open_first_device() {
  for (const auto& device : transport::verbs::list_devices()) {
    if (!device.active || device.addresses.empty()) continue;
    auto opened = transport::verbs::Device::open(device.name, device.addresses[0]);
    if (opened) return std::move(*opened);
  }
  return nullptr;
}

/// Runs `tests` on the simulated adapter in both of its personalities, each in a process into which
/// it is preloaded; or once, where the caller preloaded it or there are devices. What main()
/// returns: 77 = neither library nor device.
inline int on_simulated_devices(char** argv, int (*tests)()) {
  const char* preloaded = std::getenv("LD_PRELOAD");
  const bool simulated = preloaded && std::string(preloaded).find("softerdma") != std::string::npos;
  if (simulated || open_first_device()) return tests();
  const char* build = std::getenv("top_builddir");
  const std::string library = std::string(build ? build : ".") + "/.libs/libsofterdma.so";
  if (access(library.c_str(), R_OK)) {
    std::puts("no RDMA device, and no simulated one (make libsofterdma.la)");
    return 77;
  }
  int result = 77;
  for (const char* personality : {"standard", "compat"}) {
    std::printf("the simulated adapter, %s:\n", personality);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      setenv("LD_PRELOAD", library.c_str(), 1);
      const char* asan = std::getenv("ASAN_OPTIONS");  // which wants to be loaded first
      setenv("ASAN_OPTIONS", (std::string(asan ? asan : "") + ":verify_asan_link_order=0").c_str(),
             1);
      setenv("SOFTERDMA_PERSONALITY", personality, 1);
      execv("/proc/self/exe", argv);
      _exit(126);
    }
    int status = 0;
    const bool ended = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
    result = of_both(result, ended ? WEXITSTATUS(status) : 1);
  }
  return result;
}

/// The tests of this process are for devices.
inline bool g_on_devices = false;

inline bool not_on_devices() {
  return !g_on_devices;
}

/// Runs `tests` as they are, and on devices if there are any.
inline int here_and_on_devices(char** argv, int (*tests)()) {
  static int (*const run)() = tests;
  const char* preloaded = std::getenv("LD_PRELOAD");
  const bool simulated = preloaded && std::string(preloaded).find("softerdma") != std::string::npos;
  const int here = simulated ? 77 : run();
  const int there = on_simulated_devices(argv, [] {
    g_on_devices = true;
    return run();
  });
  return of_both(here, there);
}

}  // namespace erdma::test
