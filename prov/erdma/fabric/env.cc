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

/// A variable whose value is a decimal number from kLeast to kMost.
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
constexpr WordFor<PeerLoss> kPeerLosses[] = {{"named", PeerLoss::named}, {"all", PeerLoss::all}};
using transport::verbs::ForkPolicy;
constexpr WordFor<ForkPolicy> kForks[] = {
    {"auto", ForkPolicy::automatic}, {"safe", ForkPolicy::safe}, {"unsafe", ForkPolicy::unsafe}};
constexpr WordFor<Ptracer> kPtracers[] = {
    {"ancestor", Ptracer::ancestor}, {"any", Ptracer::any}, {"none", Ptracer::none}};

/// Parsing this variable sets the notice level, which applies to notices about the other variables.
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
  /// The key is a secret, so its value is not shown.
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

/// The table of all variables. FI_ERDMA_LOG is first because it applies to notices about the
/// others.
constexpr Variable kVariables[] = {
    {"FI_ERDMA_LOG", "log", "warn, off or info",
     "What is written to standard error if libfabric's log (FI_LOG_LEVEL) does not show it. warn: "
     "problems that slow a run down or end it. off: nothing. info: also a line about each "
     "endpoint. Default: warn.",
     LogLevel{}},
    {"FI_ERDMA_DEVICE", "device", "device names separated by commas; \"shm\" among them",
     "Devices to use, of any vendor; shm: only this host, without a NIC. Default: every ACTIVE "
     "eRDMA port.",
     Devices{}},
    {"FI_ERDMA_CMA", "cma", "auto, on or off",
     "Copy long messages directly from the other process (process_vm_readv) if the kernel permits "
     "it; auto measures whether that is faster than through shared memory. Default: auto.",
     word<&Settings::cma, kAutoOnOff>},
    {"FI_ERDMA_PTRACER", "ptracer", "ancestor, any or none",
     "Which process may trace this one (PR_SET_PTRACER) if Yama forbids that copy: the nearest "
     "common ancestor of both processes, any process, or none. Default: ancestor.",
     word<&Settings::ptracer, kPtracers>},
    {"FI_ERDMA_STREAMING", "streaming", "auto, on or off",
     "Use stores that bypass the cache in large copies; auto measures whether they are faster. "
     "Default: auto.",
     word<&Settings::streaming, kAutoOnOff>},
    {"FI_ERDMA_SHM_EAGER_SIZE", "shm_eager_size", "4096 to 131072",
     "Longest message, in bytes, that is copied through the ring in shared memory before it has "
     "matched a receive. Default: 131072, or 262144 if CMA is refused; where processes share cores "
     "65536, or 524288 if CMA is refused or much slower than copies.",
     number<&Settings::eager_bytes, 4096, 131072>},
    {"FI_ERDMA_SHM_HOT_PEERS", "shm_hot_peers", "1 to 65536",
     "Number of inbound peers that have a large ring at one time. Default: 32.",
     number<&Settings::hot_peers, 1, 65536>},
    {"FI_ERDMA_UNEXPECTED_SIZE", "unexpected_size", "16384 to 1073741824",
     "Bytes of unexpected messages that are buffered for each peer; further ones stay with the "
     "peer. Default: 16777216.",
     number<&Settings::unexpected_bytes, 16384, size_t{1} << 30>},
    {"FI_ERDMA_CONNECT_TIMEOUT", "connect_timeout", "1 to 3600000",
     "Milliseconds to wait for a peer to appear before the first connection. Default: 500 inside "
     "a host, 10000 through a NIC.",
     number<&Settings::connect_timeout_ms, 1, 3'600'000>},
    {"FI_ERDMA_TX_SIZE", "tx_size", "16 to 65536",
     "Transmit operations in flight before -FI_EAGAIN. Default: 1024.",
     number<&Settings::tx_size, 16, 65536>},
    {"FI_ERDMA_RX_SIZE", "rx_size", "16 to 65536",
     "Receive queue size reported to applications; receives never run out. Default: 1024.",
     number<&Settings::rx_size, 16, 65536>},
    {"FI_ERDMA_SHM", "shm", "auto or off",
     "Shared memory between processes of this host. off: they use the NIC, also for messages of "
     "an endpoint to itself. All processes of a job must have the same value. Default: auto.",
     word<&Settings::shm, kAutoOff>},
    {"FI_ERDMA_MR_CACHE", "mr_cache", "auto or off",
     "Keep the application's memory registered with the NIC for the next message. off: long "
     "messages are copied through memory of the provider. Default: auto.",
     word<&Settings::mr_cache, kAutoOff>},
    {"FI_ERDMA_FORK", "fork", "auto, safe or unsafe",
     "If the kernel has no copy-on-fork: auto keeps memory that the NIC uses out of forked "
     "children (MADV_DONTFORK), or copies if another library used the NIC first; safe fails "
     "instead of copying; unsafe does neither, for processes that never fork. Default: auto.",
     word<&Settings::fork, kForks>},
    {"FI_ERDMA_CUDA", "cuda", "auto or off",
     "Support GPU memory in messages and RMA (FI_HMEM), if there is a CUDA driver and the "
     "application asks for it. Default: auto.",
     word<&Settings::cuda, kAutoOff>},
    {"FI_ERDMA_CUDA_IPC", "cuda_ipc", "auto or off",
     "Processes of a host read long messages directly from each other's GPU memory; off: they "
     "copy through host memory. Default: auto.",
     word<&Settings::cuda_ipc, kAutoOff>},
    {"FI_ERDMA_HMEM_RECV_FLUSH", "hmem_recv_flush", "auto, on or off",
     "Flush the NIC's writes to a GPU before a receive completes; auto: if the GPU's attributes "
     "require it. Default: auto.",
     word<&Settings::hmem_recv_flush, kAutoOnOff>},
    {"FI_ERDMA_HMEM_MR_CACHE", "hmem_mr_cache", "auto or on",
     "Registration of GPU memory that the NIC can register only by its address: auto ends it soon "
     "after its last use, since freeing the memory may wait for that; on keeps it. Default: "
     "auto.",
     word<&Settings::hmem_mr_cache, kAutoOn>},
    {"FI_ERDMA_RENDEZVOUS", "rendezvous", "auto, read or write",
     "How a long message moves through the NIC: the receiver uses RDMA READ, or the sender RDMA "
     "WRITE. Default: auto, which is write.",
     word<&Settings::rendezvous, kRendezvous>},
    {"FI_ERDMA_NIC_EAGER_SIZE", "nic_eager_size", "2048 to 65536",
     "Largest payload, in bytes, of one packet to a busy peer through the NIC. Default: 8192.",
     number<&Settings::nic_eager_bytes, 2048, 65536>},
    {"FI_ERDMA_MAX_CONNECTIONS", "max_connections", "2 to 30000",
     "Connections of one endpoint through a NIC at one time; beyond that the least recently used "
     "one is closed until it is needed again. Default: 1024.",
     number<&Settings::max_connections, 2, 30000>},
    {"FI_ERDMA_PEER_TIMEOUT", "peer_timeout", "100 to 3600000",
     "Milliseconds without a sign of life after which a peer behind a NIC counts as dead. "
     "Default: 10000.",
     number<&Settings::peer_timeout_ms, 100, 3'600'000>},
    {"FI_ERDMA_PEER_LOSS", "peer_loss", "named or all",
     "Which receives end in an error when a peer is lost: those that name it, or also those from "
     "any source, as NCCL posts them. Default: named.",
     word<&Settings::peer_loss, kPeerLosses>},
    {"FI_ERDMA_JOB_KEY", "job_key", "1 to 256 bytes",
     "A secret that peers behind a NIC must share; an auth_key of the application takes "
     "precedence. Default: none.",
     JobKey{}},
    {"FI_ERDMA_STAT", "stat", "auto or off",
     "Publish statistics for fi_erdma stat, in a page of memory that the same user and root can "
     "read. Default: auto.",
     word<&Settings::stat, kAutoOff>},
};

std::atomic_flag g_warned[std::size(kVariables)];
constexpr std::string_view kPrefix = "FI_ERDMA_";

/// The notice does not show the value: the variable that the user meant may hold a secret.
void report_unknown(std::string_view name) {
  const auto is_it = [&](const Variable& variable) { return name == variable.name; };
  if (std::ranges::any_of(kVariables, is_it)) return;
  std::vector<std::string_view> names;
  for (const Variable& variable : kVariables) names.push_back(variable.name);
  const std::string_view meant = util::nearest_variable(name, names, kPrefix);
  const int length = int(name.size());
  if (!meant.empty())
    ERDMA_NOTICE(variable, CORE, "%.*s is ignored: there is no such variable. Did you mean %s?",
                 length, name.data(), meant.data());
  else
    ERDMA_NOTICE(variable, CORE,
                 "%.*s is ignored: there is no such variable. fi_info -e lists those of erdma",
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
  // All are defined as strings: libfabric's number parser reads "8k" as 8.
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
    ERDMA_NOTICE(variable, CORE, "%s=%s is ignored: the value must be %s", variable.name,
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
