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

/// Opens the first usable device. Returns null if there is none.
inline std::unique_ptr<transport::verbs::Device> open_first_device() {
  for (const auto& device : transport::verbs::list_devices()) {
    if (!device.active || device.addresses.empty()) continue;
    auto opened = transport::verbs::Device::open(device.name, device.addresses[0]);
    if (opened) return std::move(*opened);
  }
  return nullptr;
}

/// Returns true if the tests run in this process: the caller preloaded the simulated adapter, or
/// there are devices.
inline bool has_devices() {
  const char* preloaded = std::getenv("LD_PRELOAD");
  const bool simulated = preloaded && std::string(preloaded).find("softerdma") != std::string::npos;
  return simulated || open_first_device();
}

/// Returns the path of the simulated adapter, or an empty string if it was not built.
inline std::string simulated_adapter() {
  const char* build = std::getenv("top_builddir");
  const std::string library = std::string(build ? build : ".") + "/.libs/libsofterdma.so";
  if (!access(library.c_str(), R_OK)) return library;
  std::puts("no RDMA device, and no simulated one (make libsofterdma.la)");
  return "";
}

/// Prints the personality, and starts this program once more with the adapter preloaded.
inline pid_t start_on(const std::string& library, const char* personality, char** argv,
                      FILE* output) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child != 0) return child;
  dup2(fileno(output), STDOUT_FILENO);
  std::printf("the simulated adapter, %s:\n", personality);
  std::fflush(stdout);
  setenv("LD_PRELOAD", library.c_str(), 1);
  const char* asan = std::getenv("ASAN_OPTIONS");  // ASan checks that it is loaded first
  setenv("ASAN_OPTIONS", (std::string(asan ? asan : "") + ":verify_asan_link_order=0").c_str(), 1);
  setenv("SOFTERDMA_PERSONALITY", personality, 1);
  setenv("SYSFS_PATH", "/nowhere", 1);  // no device of this host
  start_again(argv);
  _exit(126);
}

inline int result_of(pid_t child) {
  int status = 0;
  const bool ended = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
  return ended ? WEXITSTATUS(status) : 1;
}

/// Runs `tests` on the simulated adapter in both of its personalities, each in a process into which
/// it is preloaded. Runs them once if the caller preloaded it or there are devices. Returns the
/// exit code for main(): 77 means that there is neither the library nor a device.
inline int on_simulated_devices(char** argv, int (*tests)()) {
  if (has_devices()) return tests();
  const std::string library = simulated_adapter();
  if (library.empty()) return 77;
  int result = 77;
  for (const char* personality : {"standard", "compat"})
    result = of_both(result, result_of(start_on(library, personality, argv, stdout)));
  return result;
}

/// Does the same with both personalities at once, for suites that mostly wait and whose tests each
/// have a network of their own.
inline int on_both_simulated_devices(char** argv, int (*tests)()) {
  if (has_devices()) return tests();
  const std::string library = simulated_adapter();
  if (library.empty()) return 77;
  FILE* const second_output = std::tmpfile();
  if (!second_output) return 1;
  const pid_t first = start_on(library, "standard", argv, stdout);
  const pid_t second = start_on(library, "compat", argv, second_output);
  const int result = of_both(result_of(first), result_of(second));
  std::rewind(second_output);
  for (int c; (c = std::getc(second_output)) != EOF;) std::putchar(c);
  std::fclose(second_output);
  return result;
}

/// True if the tests of this process run on devices.
inline bool g_on_devices = false;

inline bool not_on_devices() {
  return !g_on_devices;
}

/// Runs `tests` without devices, and once more on devices if there are any.
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
