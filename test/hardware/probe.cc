// probe CASE --own ADDRESS [--peer ADDRESS] [--port N] [--extra TEXT]; probe relay ADDRESS PORT;
// probe list. Runs one case on one machine, without --peer as its passive side. first-hour.sh uses
// it for verbs, which a shell cannot call. It does not use the provider. Status 77 means that the
// case can't run here.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rig.h"

using namespace erdma::hardware;

namespace {

const std::vector<NamedCase>* const kAll[] = {&kMachineCases, &kTransferCases, &kHandshakeCases,
                                              &kEndingCases, &kMemoryCases};

const NamedCase* find(const char* name) {
  for (const auto* cases : kAll)
    for (const NamedCase& each : *cases)
      if (std::strcmp(each.name, name) == 0) return &each;
  return nullptr;
}

int list() {
  for (const auto* cases : kAll)
    for (const NamedCase& each : *cases)
      std::printf("%-14s %s%s\n", each.name, each.what, each.passive ? "" : " (one side)");
  return 0;
}

bool parse(int argc, char** argv, Options& options) {
  for (int i = 2; i < argc; i += 2) {
    const char* const value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (!value) return false;
    if (!std::strcmp(argv[i], "--own"))
      options.own = value;
    else if (!std::strcmp(argv[i], "--peer"))
      options.peer = value;
    else if (!std::strcmp(argv[i], "--port"))
      options.port = uint16_t(std::atoi(value));
    else if (!std::strcmp(argv[i], "--extra"))
      options.extra = value;
    else
      return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  // Each line is written at once, so that a killed process has reported all its facts.
  (void)std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  if (argc > 1 && !std::strcmp(argv[1], "relay")) return relay(argc - 2, argv + 2);
  if (argc > 1 && !std::strcmp(argv[1], "list")) return list();
  Options options;
  const NamedCase* const found = argc > 1 ? find(argv[1]) : nullptr;
  if (!found || !parse(argc, argv, options)) {
    std::fprintf(stderr, "probe: unknown case or option; see probe list\n");
    return 2;
  }
  const bool passive = found->passive && options.peer.empty();
  (passive ? found->passive : found->active)(options);
  std::fflush(stdout);
  return 0;
}
