#include "fabric/env.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <charconv>
#include <concepts>
#include <string_view>
#include <system_error>

#include <rdma/fabric.h>
#include <rdma/providers/fi_prov.h>

#include "util/log.h"

namespace erdma::fabric {
namespace {

std::atomic<fi_provider*> g_provider{nullptr};

/// Decimal digits only, within the range.
template <std::unsigned_integral T>
bool parse_number(std::string_view text, T least, T most, T& result) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return false;
  if (value < least || value > most) return false;
  result = value;
  return true;
}

template <typename Enum>
struct Word {
  std::string_view text;
  Enum value;
};

template <typename Enum, size_t N>
bool parse_word(std::string_view text, const Word<Enum> (&words)[N], Enum& result) {
  for (const Word<Enum>& word : words) {
    if (word.text != text) continue;
    result = word.value;
    return true;
  }
  return false;
}

bool device_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == ':';
  });
}

bool parse_devices(std::string_view text, Settings& settings) {
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

constexpr Word<Switch> kAutoOff[] = {{"auto", Switch::automatic}, {"off", Switch::off}};
constexpr Word<Switch> kAutoOnOff[] = {
    {"auto", Switch::automatic}, {"on", Switch::on}, {"off", Switch::off}};
constexpr Word<Ptracer> kPtracers[] = {
    {"ancestor", Ptracer::ancestor}, {"any", Ptracer::any}, {"none", Ptracer::none}};

struct Variable {
  const char* name;     ///< in the environment
  const char* key;      ///< for fi_param_define, which puts FI_ERDMA_ before it
  const char* allowed;  ///< the values, for the warning and for fi_info -e
  const char* help;
  bool (*parse)(std::string_view text, Settings& settings);
};

/// The one table of variables.
constexpr Variable kVariables[] = {
    {"FI_ERDMA_DEVICE", "device", "device names separated by commas; \"shm\" among them",
     "Devices to use, whatever their vendor; shm means this host only, without a NIC. Default: "
     "every ACTIVE eRDMA port.",
     parse_devices},
    {"FI_ERDMA_CMA", "cma", "auto or off",
     "Copy large messages straight from the other process (process_vm_readv) where the kernel "
     "permits. Default: auto.",
     [](std::string_view text, Settings& s) { return parse_word(text, kAutoOff, s.cma); }},
    {"FI_ERDMA_PTRACER", "ptracer", "ancestor, any or none",
     "Whom to admit with PR_SET_PTRACER where Yama forbids that copy: the nearest common ancestor "
     "of both processes, anyone, no one. Default: ancestor.",
     [](std::string_view text, Settings& s) { return parse_word(text, kPtracers, s.ptracer); }},
    {"FI_ERDMA_STREAMING", "streaming", "auto, on or off",
     "Stores that bypass the cache in large copies; auto measures. Default: auto.",
     [](std::string_view text, Settings& s) { return parse_word(text, kAutoOnOff, s.streaming); }},
    {"FI_ERDMA_SHM_EAGER_SIZE", "shm_eager_size", "4096 to 16384",
     "Largest payload, in bytes, that one packet in shared memory carries. Default: 8192.",
     [](std::string_view text, Settings& s) {
       return parse_number<size_t>(text, 4096, 16384, s.eager_bytes);
     }},
    {"FI_ERDMA_SHM_HOT_PEERS", "shm_hot_peers", "1 to 65536",
     "Inbound peers that have a large ring at one time. Default: 32.",
     [](std::string_view text, Settings& s) {
       return parse_number<unsigned>(text, 1, 65536, s.hot_peers);
     }},
    {"FI_ERDMA_UNEXPECTED_SIZE", "unexpected_size", "16384 to 1073741824",
     "Bytes of unexpected messages buffered per peer before it is told to hold back. "
     "Default: 1048576.",
     [](std::string_view text, Settings& s) {
       return parse_number<size_t>(text, 16384, size_t{1} << 30, s.unexpected_bytes);
     }},
    {"FI_ERDMA_CONNECT_TIMEOUT", "connect_timeout", "1 to 3600000",
     "Milliseconds that a peer never met before may take to appear. Default: 500.",
     [](std::string_view text, Settings& s) {
       return parse_number<unsigned>(text, 1, 3'600'000, s.connect_timeout_ms);
     }},
    {"FI_ERDMA_TX_SIZE", "tx_size", "16 to 65536",
     "Transmit operations in flight before -FI_EAGAIN. Default: 1024.",
     [](std::string_view text, Settings& s) {
       return parse_number<unsigned>(text, 16, 65536, s.tx_size);
     }},
    {"FI_ERDMA_RX_SIZE", "rx_size", "16 to 65536",
     "Receive queue size reported to applications; receives never run out. Default: 1024.",
     [](std::string_view text, Settings& s) {
       return parse_number<unsigned>(text, 16, 65536, s.rx_size);
     }},
};

std::atomic_flag g_warned[std::size(kVariables)];

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
    ERDMA_WARN(CORE, "%s=%s is ignored: the value must be %s\n", variable.name, text,
               variable.allowed);
  }
  return settings;
}

Settings read_settings() {
  return read_settings(g_provider.load(std::memory_order_relaxed));
}

}  // namespace erdma::fabric
