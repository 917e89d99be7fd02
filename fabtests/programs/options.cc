#include "options.h"

#include <getopt.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <rdma/fi_errno.h>

namespace erdma::programs {
namespace {

[[noreturn]] void end(Status status, const char* format, va_list arguments) {
  char text[512];
  std::vsnprintf(text, sizeof text, format, arguments);
  std::fflush(stdout);
  std::fprintf(stderr, "%s[%d]: %s\n", program_invocation_short_name, int(::getpid()), text);
  std::fflush(nullptr);
  ::_exit(status);
}

constexpr char kShort[] = "p:d:s:B:P:I:S:D:T:vh";
enum Long { kPair = 256, kNicOnly, kSpoil, kFirstExtra };

void help(const Program& program) {
  const char* name = program_invocation_short_name;
  std::printf("%s\n\nusage: %s [OPTION]...%s\n", program.what, name,
              program.alone ? "" : "          the server");
  if (!program.alone) {
    std::printf("       %s [OPTION]... SERVER   the client\n", name);
    std::printf("       %s --pair [OPTION]...   both, on this host\n", name);
  }
  std::printf(
      "  -p PROVIDER    (default: FI_PROVIDER, else erdma)\n"
      "  -d DOMAIN      name of the domain\n"
      "  -s ADDRESS     address of the NIC to use\n");
  if (!program.alone)
    std::printf(
        "  -B, -P PORT    TCP port over which server (-B) and client (-P) find each other "
        "(9228)\n");
  std::printf(
      "  -I NUMBER      iterations\n"
      "  -S SIZE        bytes, with K, M, G; or \"all\": 0 to %zu and those beside powers of "
      "two%s\n"
      "  -D MEMORY      host (default) or cuda\n"
      "  -T SECONDS     limit of each wait (60)\n"
      "  -v             verify: always on\n"
      "  --nic-only     no shared memory (FI_OPT_SHARED_MEMORY_PERMITTED false)\n"
      "  --spoil        one wrong byte: the program must then fail\n",
      program.largest_size, program.sizes.empty() ? " (default)" : "");
  for (const Extra& extra : program.extras) {
    std::printf("  --%s%s%s\n                 %s\n", extra.name, extra.value ? " " : "",
                extra.value ? extra.value : "", extra.help);
  }
  std::printf("Status: 0 passed, 77 not supported here, 1 failed.\n");
}

bool take(Options& options, const Program& program, int option, const char* value) {
  switch (option) {
    case 'p':
      options.provider = value;
      return true;
    case 'd':
      options.domain = value;
      return true;
    case 's':
      options.source = value;
      return true;
    case 'B':
    case 'P':
      options.port = value;
      return true;
    case 'I':
      return (options.iterations = std::atoi(value)) > 0;
    case 'S':
      options.sizes.assign(1, 0);
      if (std::strcmp(value, "all") == 0) options.sizes = all_sizes(program.largest_size);
      return std::strcmp(value, "all") == 0 || parse_size(value, options.sizes[0]);
    case 'D':
      options.memory = value;
      return options.memory == "host" || options.memory == "cuda";
    case 'T':
      return (options.limit_s = std::atof(value)) > 0;
    case 'v':
      return true;
    case kPair:
      return options.pair = !program.alone;
    case kNicOnly:
      return options.nic_only = true;
    case kSpoil:
      return options.spoil = true;
    case 'h':
      help(program);
      std::exit(kPassed);
    case '?':
      return false;
    default:
      return program.extras[size_t(option - kFirstExtra)].take(value);
  }
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end(kFailed, format, arguments);
}

void not_supported(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  end(kNotSupported, format, arguments);
}

void must(long rc, const char* what) {
  if (rc != 0) fail("%s: %ld (%s)", what, rc, fi_strerror(int(rc < 0 ? -rc : rc)));
}

bool parse_size(const char* text, size_t& size) {
  char* rest = nullptr;
  if (*text < '0' || *text > '9') return false;
  size = std::strtoull(text, &rest, 0);
  const char* units = "KMG";
  if (const char* unit = *rest ? std::strchr(units, *rest) : nullptr) {
    size <<= 10 * (unit - units + 1);
    ++rest;
  }
  return *rest == '\0';
}

std::vector<size_t> all_sizes(size_t largest) {
  std::vector<size_t> sizes = {0, 1, 2};
  for (size_t power = 4; power <= largest; power *= 2) {
    for (size_t size : {power - 1, power, power + 1}) {
      if (size <= largest) sizes.push_back(size);
    }
  }
  return sizes;
}

Options parse(int argc, char** argv, const Program& program) {
  Options options;
  const char* provider = std::getenv("FI_PROVIDER");
  options.provider = provider && *provider ? provider : "erdma";
  options.sizes = program.sizes.empty() ? all_sizes(program.largest_size) : program.sizes;
  std::vector<option> longs = {{"pair", no_argument, nullptr, kPair},
                               {"nic-only", no_argument, nullptr, kNicOnly},
                               {"spoil", no_argument, nullptr, kSpoil},
                               {"help", no_argument, nullptr, 'h'}};
  for (size_t i = 0; i < program.extras.size(); ++i) {
    const Extra& extra = program.extras[i];
    longs.push_back(
        {extra.name, extra.value ? required_argument : no_argument, nullptr, kFirstExtra + int(i)});
  }
  longs.push_back({});
  for (int found; (found = ::getopt_long(argc, argv, kShort, longs.data(), nullptr)) != -1;) {
    if (!take(options, program, found, optarg)) fail("option not understood; -h lists them");
  }
  if (optind < argc && !program.alone && !options.pair) options.server = argv[optind++];
  if (optind < argc) fail("'%s' is one argument too many; -h helps", argv[optind]);
  return options;
}

}  // namespace erdma::programs
