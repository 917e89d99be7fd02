#include "fabric/env.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>

#include "util/log.h"
#include "util/spelling.h"

namespace erdma::fabric {
namespace {

std::atomic<fi_provider*> g_provider{nullptr};

/// How a variable is read, and how its setting is shown. Decimal digits only, within the range.
template <auto kMember, size_t kLeast, size_t kMost>
struct Number {
  static bool parse(std::string_view text, Settings& settings) {
    size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return false;
    if (value < kLeast || value > kMost) return false;
    settings.*kMember = std::remove_reference_t<decltype(settings.*kMember)>(value);
    return true;
  }
  static std::string show(const Settings& settings) {
    const size_t value = settings.*kMember;
    return value < kLeast ? "default" : std::to_string(value);
  }
};
template <auto kMember, size_t kLeast, size_t kMost>
constexpr Number<kMember, kLeast, kMost> number;

template <typename Enum>
struct WordFor {
  std::string_view text;
  Enum value;
};

template <auto kMember, const auto& kWords>
struct Word {
  static bool parse(std::string_view text, Settings& settings) {
    for (const auto& word : kWords) {
      if (word.text != text) continue;
      settings.*kMember = word.value;
      return true;
    }
    return false;
  }
  static std::string show(const Settings& settings) {
    for (const auto& word : kWords)
      if (word.value == settings.*kMember) return std::string(word.text);
    return {};
  }
};
template <auto kMember, const auto& kWords>
constexpr Word<kMember, kWords> word;

bool device_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':';
  });
}

struct Devices {
  static bool parse(std::string_view text, Settings& settings) {
    std::vector<std::string> names;
    while (!text.empty()) {
      const size_t comma = text.find(',');
      if (!device_name(text.substr(0, comma)) || comma == text.size() - 1) return false;
      names.emplace_back(text.substr(0, comma));
      text.remove_prefix(comma == text.npos ? text.size() : comma + 1);
    }
    settings.devices = std::move(names);
    return true;
  }
  static std::string show(const Settings& settings) {
    std::string text;
    for (const std::string& name : settings.devices) text += (text.empty() ? "" : ",") + name;
    return text;
  }
};

constexpr WordFor<util::NoticeLevel> kNoticeLevels[] = {{"warn", util::NoticeLevel::warn},
                                                        {"off", util::NoticeLevel::off},
                                                        {"info", util::NoticeLevel::info}};
constexpr WordFor<Switch> kAutoOff[] = {{"auto", Switch::automatic}, {"off", Switch::off}};
constexpr WordFor<Switch> kAutoOn[] = {{"auto", Switch::automatic}, {"on", Switch::on}};
constexpr WordFor<Switch> kAutoOnOff[] = {
    {"auto", Switch::automatic}, {"on", Switch::on}, {"off", Switch::off}};
constexpr WordFor<RendezvousBy> kRendezvous[] = {{"auto", RendezvousBy::automatic},
                                                 {"read", RendezvousBy::read},
                                                 {"write", RendezvousBy::write}};
using transport::verbs::ForkPolicy;
constexpr WordFor<ForkPolicy> kForks[] = {
    {"auto", ForkPolicy::automatic}, {"safe", ForkPolicy::safe}, {"unsafe", ForkPolicy::unsafe}};
constexpr WordFor<Ptracer> kPtracers[] = {
    {"ancestor", Ptracer::ancestor}, {"any", Ptracer::any}, {"none", Ptracer::none}};

/// It decides who hears of a fault in the other variables.
struct LogLevel : Word<&Settings::log, kNoticeLevels> {
  static bool parse(std::string_view text, Settings& settings) {
    const bool known = Word::parse(text, settings);
    util::set_notice_level(settings.log);
    return known;
  }
};

struct JobKey {
  static bool parse(std::string_view text, Settings& settings) {
    if (text.empty() || text.size() > kMaxKeyBytes) return false;
    settings.job_key = text;
    return true;
  }
  /// It is a secret.
  static std::string show(const Settings& settings) {
    return settings.job_key.empty() ? "" : "(not shown)";
  }
};

struct Variable {
  template <typename Kind>
  constexpr Variable(const char* name_, const char* key_, const char* allowed_, const char* help_,
                     Kind)
      : name(name_),
        key(key_),
        allowed(allowed_),
        help(help_),
        parse(Kind::parse),
        show(Kind::show) {}

  const char* name;     ///< in the environment
  const char* key;      ///< for fi_param_define, which puts FI_ERDMA_ before it
  const char* allowed;  ///< the values, for the warning and for fi_info -e
  const char* help;
  bool (*parse)(std::string_view text, Settings& settings);
  std::string (*show)(const Settings& settings);
};

/// The one table of variables. The first decides who hears of a fault in the others.
constexpr Variable kVariables[] = {
    {"FI_ERDMA_LOG", "log", "warn, off or info",
     "What is written to standard error where libfabric's log (FI_LOG_LEVEL) does not show it: "
     "what slows a run down or ends it; nothing; a line about each endpoint as well. Default: "
     "warn.",
     LogLevel{}},
    {"FI_ERDMA_DEVICE", "device", "device names separated by commas; \"shm\" among them",
     "Devices to use, whatever their vendor; shm means this host only, without a NIC. Default: "
     "every ACTIVE eRDMA port.",
     Devices{}},
    {"FI_ERDMA_CMA", "cma", "auto, on or off",
     "Copy large messages straight from the other process (process_vm_readv) where the kernel "
     "permits; auto measures whether that is faster than through shared memory. Default: auto.",
     word<&Settings::cma, kAutoOnOff>},
    {"FI_ERDMA_PTRACER", "ptracer", "ancestor, any or none",
     "Whom to admit with PR_SET_PTRACER where Yama forbids that copy: the nearest common ancestor "
     "of both processes, anyone, no one. Default: ancestor.",
     word<&Settings::ptracer, kPtracers>},
    {"FI_ERDMA_STREAMING", "streaming", "auto, on or off",
     "Stores that bypass the cache in large copies; auto measures. Default: auto.",
     word<&Settings::streaming, kAutoOnOff>},
    {"FI_ERDMA_SHM_EAGER_SIZE", "shm_eager_size", "4096 to 16384",
     "Largest payload, in bytes, that one packet in shared memory carries. Default: 8192; up to "
     "16384 while earlier messages wait, or more ranks than cores run.",
     number<&Settings::eager_bytes, 4096, 16384>},
    {"FI_ERDMA_SHM_HOT_PEERS", "shm_hot_peers", "1 to 65536",
     "Inbound peers that have a large ring at one time. Default: 32.",
     number<&Settings::hot_peers, 1, 65536>},
    {"FI_ERDMA_UNEXPECTED_SIZE", "unexpected_size", "16384 to 1073741824",
     "Bytes of unexpected messages buffered per peer before it is told to hold back. "
     "Default: 16777216.",
     number<&Settings::unexpected_bytes, 16384, size_t{1} << 30>},
    {"FI_ERDMA_CONNECT_TIMEOUT", "connect_timeout", "1 to 3600000",
     "Milliseconds that a peer never met before may take to appear. Default: 500 within a host, "
     "10000 through a NIC.",
     number<&Settings::connect_timeout_ms, 1, 3'600'000>},
    {"FI_ERDMA_TX_SIZE", "tx_size", "16 to 65536",
     "Transmit operations in flight before -FI_EAGAIN. Default: 1024.",
     number<&Settings::tx_size, 16, 65536>},
    {"FI_ERDMA_RX_SIZE", "rx_size", "16 to 65536",
     "Receive queue size reported to applications; receives never run out. Default: 1024.",
     number<&Settings::rx_size, 16, 65536>},
    {"FI_ERDMA_SHM", "shm", "auto or off",
     "Shared memory between processes of this host. off: they use the NIC, as does an endpoint "
     "that sends to itself. The same for all processes of a job. Default: auto.",
     word<&Settings::shm, kAutoOff>},
    {"FI_ERDMA_MR_CACHE", "mr_cache", "auto or off",
     "Keep the application's memory registered with the NIC for the next message. off: large "
     "messages are copied through memory of the provider's own. Default: auto.",
     word<&Settings::mr_cache, kAutoOff>},
    {"FI_ERDMA_FORK", "fork", "auto, safe or unsafe",
     "Where the kernel has no copy-on-fork: auto keeps memory that the NIC uses from forked "
     "children (MADV_DONTFORK), or copies where that is too late; safe fails instead; unsafe does "
     "neither, for processes that never fork. Default: auto.",
     word<&Settings::fork, kForks>},
    {"FI_ERDMA_CUDA", "cuda", "auto or off",
     "GPU memory in messages and RMA (FI_HMEM), where there is a CUDA driver and an application "
     "asks for it. Default: auto.",
     word<&Settings::cuda, kAutoOff>},
    {"FI_ERDMA_CUDA_IPC", "cuda_ipc", "auto or off",
     "Processes of a host read long messages where they are in each other's GPU memory; off: they "
     "are copied through host memory. Default: auto.",
     word<&Settings::cuda_ipc, kAutoOff>},
    {"FI_ERDMA_HMEM_RECV_FLUSH", "hmem_recv_flush", "auto, on or off",
     "Flush what the NIC wrote to a GPU before a receive completes; auto: where the GPU's "
     "attributes say that kernels may not see it otherwise. Default: auto.",
     word<&Settings::hmem_recv_flush, kAutoOnOff>},
    {"FI_ERDMA_HMEM_MR_CACHE", "hmem_mr_cache", "auto or on",
     "GPU memory that the NIC can register by its address only: auto ends the registration soon "
     "after its last use, as freeing the memory may wait for that; on keeps it. Default: auto.",
     word<&Settings::hmem_mr_cache, kAutoOn>},
    {"FI_ERDMA_RENDEZVOUS", "rendezvous", "auto, read or write",
     "Who moves the bytes of a large message through the NIC: the receiver by RDMA READ or the "
     "sender by RDMA WRITE. Default: auto.",
     word<&Settings::rendezvous, kRendezvous>},
    {"FI_ERDMA_NIC_EAGER_SIZE", "nic_eager_size", "2048 to 65536",
     "Largest payload, in bytes, that one packet to a busy peer carries through the NIC. "
     "Default: 8192.",
     number<&Settings::nic_eager_bytes, 2048, 65536>},
    {"FI_ERDMA_MAX_CONNECTIONS", "max_connections", "2 to 30000",
     "Connections of one endpoint through a NIC at one time; beyond that the least recently used "
     "is given up until it is needed again. Default: 1024.",
     number<&Settings::max_connections, 2, 30000>},
    {"FI_ERDMA_PEER_TIMEOUT", "peer_timeout", "100 to 3600000",
     "Milliseconds without a sign of life after which a peer behind a NIC is taken for dead. "
     "Default: 10000.",
     number<&Settings::peer_timeout_ms, 100, 3'600'000>},
    {"FI_ERDMA_JOB_KEY", "job_key", "1 to 256 bytes",
     "A secret that peers behind a NIC must share; an auth_key of the application goes before it. "
     "Default: none.",
     JobKey{}},
    {"FI_ERDMA_STAT", "stat", "auto or off",
     "Show what this process does to fi_erdma stat, in a page of memory that the same user and "
     "root "
     "can read. Default: auto.",
     word<&Settings::stat, kAutoOff>},
};

std::atomic_flag g_warned[std::size(kVariables)];
constexpr std::string_view kPrefix = "FI_ERDMA_";

/// The values are not shown: the one meant may be a secret.
void report_unknown(std::string_view name) {
  const auto is_it = [&](const Variable& variable) { return name == variable.name; };
  if (std::ranges::any_of(kVariables, is_it)) return;
  std::vector<std::string_view> names;
  for (const Variable& variable : kVariables) names.push_back(variable.name);
  const std::string_view meant = util::nearest_variable(name, names, kPrefix);
  const int length = int(name.size());
  if (!meant.empty())
    ERDMA_NOTICE(variable, CORE, "%.*s is ignored: there is no such variable. Did you mean %s?\n",
                 length, name.data(), meant.data());
  else
    ERDMA_NOTICE(variable, CORE,
                 "%.*s is ignored: there is no such variable. fi_info -e lists those of erdma\n",
                 length, name.data());
}

void report_unknown_variables() {
  static std::atomic_flag reported;
  if (reported.test_and_set()) return;
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with(kPrefix)) report_unknown(text.substr(0, text.find('=')));
  }
}

}  // namespace

void define_settings(fi_provider* provider) noexcept {
  g_provider.store(provider, std::memory_order_relaxed);
  // All are strings to libfabric: its own number parser takes "8k" for 8.
  for (const Variable& variable : kVariables)
    fi_param_define(provider, variable.key, FI_PARAM_STRING, "%s Values: %s.", variable.help,
                    variable.allowed);
}

Settings read_settings(fi_provider* provider) {
  Settings settings;
  if (!provider) return settings;
  for (size_t i = 0; i < std::size(kVariables); ++i) {
    const Variable& variable = kVariables[i];
    char* text = nullptr;
    if (fi_param_get(provider, variable.key, &text) != 0 || !text) continue;
    if (variable.parse(text, settings) || g_warned[i].test_and_set()) continue;
    const bool secret = std::string_view(variable.key) == "job_key";
    ERDMA_NOTICE(variable, CORE, "%s=%s is ignored: the value must be %s\n", variable.name,
                 secret ? "(not shown)" : text, variable.allowed);
  }
  report_unknown_variables();
  return settings;
}

std::vector<ShownSetting> show_settings(const Settings& settings) {
  static const Settings defaults;
  std::vector<ShownSetting> shown;
  for (const Variable& variable : kVariables) {
    std::string value = variable.show(settings);
    const bool changed = value != variable.show(defaults);
    shown.push_back({variable.name, std::move(value), changed});
  }
  return shown;
}

Settings read_settings() {
  return read_settings(g_provider.load(std::memory_order_relaxed));
}

}  // namespace erdma::fabric
