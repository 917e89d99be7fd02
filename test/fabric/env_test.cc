#include "fabric/env.h"

#include <stdlib.h>

#include <string>

#include "fake/captured_log.h"
#include "fake/captured_stderr.h"
#include "libcheck.h"

using erdma::fabric::PeerLoss;
using erdma::fabric::Ptracer;
using erdma::fabric::RendezvousBy;
using erdma::fabric::Settings;
using erdma::fabric::Switch;
using namespace erdma::test;
using erdma::transport::verbs::ForkPolicy;
using erdma::util::NoticeLevel;

namespace {

fi_provider g_provider{};

/// Runs once, in the parent of all tests, because libfabric's initialization is slow.
void define() {
  fi_param* params = nullptr;
  int count = 0;
  fi_getparams(&params, &count);  // makes libfabric initialize itself
  fi_freeparams(params);
  g_provider.name = "erdma";
  erdma::fabric::define_settings(&g_provider);
  g_log.clear();
}

/// ck_assert_str_eq() would keep a pointer into a temporary.
void check_text(const std::string& text, const char* expected) {
  ck_assert_str_eq(text.c_str(), expected);
}

bool same(const Settings& a, const Settings& b) {
  return a.log == b.log && a.devices == b.devices && a.cma == b.cma && a.ptracer == b.ptracer &&
         a.streaming == b.streaming && a.eager_bytes == b.eager_bytes &&
         a.hot_peers == b.hot_peers && a.unexpected_bytes == b.unexpected_bytes &&
         a.connect_timeout_ms == b.connect_timeout_ms && a.tx_size == b.tx_size &&
         a.rx_size == b.rx_size && a.shm == b.shm && a.mr_cache == b.mr_cache && a.fork == b.fork &&
         a.rendezvous == b.rendezvous && a.nic_eager_bytes == b.nic_eager_bytes &&
         a.max_connections == b.max_connections && a.peer_timeout_ms == b.peer_timeout_ms &&
         a.hmem_mr_cache == b.hmem_mr_cache && a.job_key == b.job_key && a.stat == b.stat;
}

struct GoodCase {
  const char* variable;
  const char* value;
  bool (*holds)(const Settings&);
};

const std::string kLongestKey(256, 'k');
const GoodCase kGood[] = {
    {"FI_ERDMA_LOG", "warn", [](const Settings& s) { return s.log == NoticeLevel::warn; }},
    {"FI_ERDMA_LOG", "off", [](const Settings& s) { return s.log == NoticeLevel::off; }},
    {"FI_ERDMA_LOG", "info", [](const Settings& s) { return s.log == NoticeLevel::info; }},
    {"FI_ERDMA_DEVICE", "shm", [](const Settings& s) { return s.devices.size() == 1; }},
    {"FI_ERDMA_DEVICE", "erdma_0,mlx5_1",
     [](const Settings& s) { return s.devices.size() == 2 && s.devices[1] == "mlx5_1"; }},
    {"FI_ERDMA_DEVICE", "", [](const Settings& s) { return s.devices.empty(); }},
    {"FI_ERDMA_CMA", "auto", [](const Settings& s) { return s.cma == Switch::automatic; }},
    {"FI_ERDMA_CMA", "on", [](const Settings& s) { return s.cma == Switch::on; }},
    {"FI_ERDMA_CMA", "off", [](const Settings& s) { return s.cma == Switch::off; }},
    {"FI_ERDMA_PTRACER", "any", [](const Settings& s) { return s.ptracer == Ptracer::any; }},
    {"FI_ERDMA_PTRACER", "none", [](const Settings& s) { return s.ptracer == Ptracer::none; }},
    {"FI_ERDMA_STREAMING", "on", [](const Settings& s) { return s.streaming == Switch::on; }},
    {"FI_ERDMA_STREAMING", "off", [](const Settings& s) { return s.streaming == Switch::off; }},
    {"FI_ERDMA_SHM_EAGER_SIZE", "4096", [](const Settings& s) { return s.eager_bytes == 4096; }},
    {"FI_ERDMA_SHM_EAGER_SIZE", "131072",
     [](const Settings& s) { return s.eager_bytes == 131072; }},
    {"FI_ERDMA_SHM_HOT_PEERS", "1", [](const Settings& s) { return s.hot_peers == 1; }},
    {"FI_ERDMA_UNEXPECTED_SIZE", "65536",
     [](const Settings& s) { return s.unexpected_bytes == 65536; }},
    {"FI_ERDMA_CONNECT_TIMEOUT", "5000",
     [](const Settings& s) { return s.connect_timeout_ms == 5000; }},
    {"FI_ERDMA_TX_SIZE", "64", [](const Settings& s) { return s.tx_size == 64; }},
    {"FI_ERDMA_RX_SIZE", "128", [](const Settings& s) { return s.rx_size == 128; }},
    {"FI_ERDMA_SHM", "off", [](const Settings& s) { return s.shm == Switch::off; }},
    {"FI_ERDMA_MR_CACHE", "off", [](const Settings& s) { return s.mr_cache == Switch::off; }},
    {"FI_ERDMA_HMEM_MR_CACHE", "on",
     [](const Settings& s) { return s.hmem_mr_cache == Switch::on; }},
    {"FI_ERDMA_FORK", "safe", [](const Settings& s) { return s.fork == ForkPolicy::safe; }},
    {"FI_ERDMA_FORK", "unsafe", [](const Settings& s) { return s.fork == ForkPolicy::unsafe; }},
    {"FI_ERDMA_RENDEZVOUS", "write",
     [](const Settings& s) { return s.rendezvous == RendezvousBy::write; }},
    {"FI_ERDMA_NIC_EAGER_SIZE", "2048",
     [](const Settings& s) { return s.nic_eager_bytes == 2048; }},
    {"FI_ERDMA_MAX_CONNECTIONS", "2", [](const Settings& s) { return s.max_connections == 2; }},
    {"FI_ERDMA_PEER_TIMEOUT", "500", [](const Settings& s) { return s.peer_timeout_ms == 500; }},
    {"FI_ERDMA_PEER_LOSS", "all", [](const Settings& s) { return s.peer_loss == PeerLoss::all; }},
    {"FI_ERDMA_STAT", "off", [](const Settings& s) { return s.stat == Switch::off; }},
    {"FI_ERDMA_JOB_KEY", "let me in", [](const Settings& s) { return s.job_key == "let me in"; }},
    {"FI_ERDMA_JOB_KEY", kLongestKey.c_str(),
     [](const Settings& s) { return s.job_key.size() == 256; }},
};

SUITE(.once = define);

TEST(a_valid_value_is_taken_in_silence, std::size(kGood)) {
  const GoodCase& c = kGood[_i];
  setenv(c.variable, c.value, 1);
  ck_assert_msg(c.holds(erdma::fabric::read_settings(&g_provider)), "%s=%s", c.variable, c.value);
  check_text(only_log_line(), "");
}

struct BadCase {
  const char* variable;
  const char* value;
  const char* allowed;
};

const BadCase kBad[] = {
    {"FI_ERDMA_LOG", "debug", "warn, off or info"},
    {"FI_ERDMA_DEVICE", ",", "device names"},
    {"FI_ERDMA_DEVICE", "a,,b", "device names"},
    {"FI_ERDMA_DEVICE", "a,", "device names"},
    {"FI_ERDMA_DEVICE", "a b", "device names"},
    {"FI_ERDMA_CMA", "yes", "auto, on or off"},
    {"FI_ERDMA_CMA", "", "auto, on or off"},
    {"FI_ERDMA_CMA", "OFF", "auto, on or off"},
    {"FI_ERDMA_PTRACER", "all", "ancestor, any or none"},
    {"FI_ERDMA_STREAMING", "yes", "auto, on or off"},
    {"FI_ERDMA_SHM_EAGER_SIZE", "4095", "4096 to 131072"},
    {"FI_ERDMA_SHM_EAGER_SIZE", "131073", "4096 to 131072"},
    {"FI_ERDMA_SHM_EAGER_SIZE", "8k", "4096 to 131072"},
    {"FI_ERDMA_SHM_EAGER_SIZE", " 8192", "4096 to 131072"},
    {"FI_ERDMA_SHM_EAGER_SIZE", "-8192", "4096 to 131072"},
    {"FI_ERDMA_SHM_HOT_PEERS", "0", "1 to 65536"},
    {"FI_ERDMA_UNEXPECTED_SIZE", "0x100000", "16384 to 1073741824"},
    {"FI_ERDMA_CONNECT_TIMEOUT", "99999999999999999999", "1 to 3600000"},
    {"FI_ERDMA_TX_SIZE", "0", "16 to 65536"},
    {"FI_ERDMA_RX_SIZE", "65537", "16 to 65536"},
    {"FI_ERDMA_SHM", "on", "auto or off"},
    {"FI_ERDMA_MR_CACHE", "on", "auto or off"},
    {"FI_ERDMA_FORK", "on", "auto, safe or unsafe"},
    {"FI_ERDMA_RENDEZVOUS", "pull", "auto, read or write"},
    {"FI_ERDMA_NIC_EAGER_SIZE", "1024", "2048 to 65536"},
    {"FI_ERDMA_MAX_CONNECTIONS", "1", "2 to 30000"},
    {"FI_ERDMA_MAX_CONNECTIONS", "30001", "2 to 30000"},
    {"FI_ERDMA_STAT", "on", "auto or off"},
    {"FI_ERDMA_PEER_TIMEOUT", "99", "100 to 3600000"},
    {"FI_ERDMA_PEER_LOSS", "none", "named or all"},
};

TEST(a_bad_value_is_replaced_by_the_default_with_one_warning, std::size(kBad)) {
  const BadCase& c = kBad[_i];
  setenv(c.variable, c.value, 1);
  ck_assert(same(erdma::fabric::read_settings(&g_provider), Settings()));
  ck_assert(same(erdma::fabric::read_settings(&g_provider), Settings()));
  ck_assert_uint_eq(g_log.size(), 1);
  ck_assert_int_eq(g_log[0].level, FI_LOG_WARN);
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, (std::string(c.variable) + "=" + c.value + " ").c_str()), "%s",
                line.c_str());
  ck_assert_msg(contains(line, c.allowed), "%s", line.c_str());
}

TEST(a_key_that_is_refused_is_not_shown) {
  const std::string secret(257, 's');
  setenv("FI_ERDMA_JOB_KEY", secret.c_str(), 1);
  ck_assert(erdma::fabric::read_settings(&g_provider).job_key.empty());
  const std::string line = only_log_line();
  ck_assert_msg(contains(line, "FI_ERDMA_JOB_KEY=(not shown)") && !contains(line, "sss"), "%s",
                line.c_str());
}

struct UnknownCase {
  const char* variable;
  const char* advice;
};

const UnknownCase kUnknown[] = {
    {"FI_ERDMA_DEVICES", "Did you mean FI_ERDMA_DEVICE?"},
    {"FI_ERDMA_DEVCIE", "Did you mean FI_ERDMA_DEVICE?"},
    {"FI_ERDMA_device", "Did you mean FI_ERDMA_DEVICE?"},
    {"FI_ERDMA_MR_CACHE_ENABLE", "fi_info -e lists those of erdma"},
    {"FI_ERDMA_SHM_EAGER_SIZ", "Did you mean FI_ERDMA_SHM_EAGER_SIZE?"},
    {"FI_ERDMA_NIC_EAGERSIZE", "Did you mean FI_ERDMA_NIC_EAGER_SIZE?"},
    {"FI_ERDMA_CM", "Did you mean FI_ERDMA_CMA?"},
    {"FI_ERDMA_LOG_LEVEL", "fi_info -e lists those of erdma"},
    {"FI_ERDMA_", "fi_info -e lists those of erdma"},
    {"FI_ERDMA_XYZ", "fi_info -e lists those of erdma"},
    {"FI_ERDMA_AN_EXTREMELY_LONG_NAME_THAT_NOBODY_WOULD_EVER_TYPE_INTO_A_SHELL_BY_MISTAKE",
     "fi_info -e lists those of erdma"},
};

TEST(an_unknown_variable_is_told_once_with_the_nearest_one_and_without_its_value,
     std::size(kUnknown)) {
  const UnknownCase& c = kUnknown[_i];
  setenv(c.variable, "secret", 1);
  ck_assert(same(erdma::fabric::read_settings(&g_provider), Settings()));
  ck_assert(same(erdma::fabric::read_settings(&g_provider), Settings()));
  ck_assert_uint_eq(g_log.size(), 1);
  ck_assert_int_eq(g_log[0].level, FI_LOG_WARN);
  const std::string line = only_log_line();
  ck_assert_msg(line.starts_with(std::string(c.variable) + " is ignored"), "%s", line.c_str());
  ck_assert_msg(contains(line, c.advice) && !contains(line, "secret"), "%s", line.c_str());
}

TEST(variables_of_others_are_none_of_ours) {
  setenv("FI_ERDM_DEVICE", "a", 1);
  setenv("FI_ERDMAX_DEVICE", "a", 1);
  setenv("ERDMA_DEVICE", "a", 1);
  ck_assert(same(erdma::fabric::read_settings(&g_provider), Settings()));
  check_text(only_log_line(), "");
}

/// The test runs as if no other variable were set.
TEST(faults_in_variables_are_seen_unless_the_log_is_off, 2) {
  const CapturedStderr error_output;
  g_log_level = -1;
  setenv("FI_ERDMA_DEVICES", "a", 1);
  setenv("FI_ERDMA_CMA", "yes", 1);
  if (_i) setenv("FI_ERDMA_LOG", "off", 1);
  erdma::fabric::read_settings(&g_provider);
  erdma::fabric::read_settings(&g_provider);
  ck_assert_uint_eq(error_output.writes().size(), _i ? 0 : 2);
  ck_assert_uint_eq(g_log.size(), 0);
}

TEST(without_any_variable_the_defaults_hold) {
  ck_assert(same(erdma::fabric::read_settings(&g_provider), Settings()));
  check_text(only_log_line(), "");
}

TEST(without_a_provider_the_defaults_hold) {
  setenv("FI_ERDMA_TX_SIZE", "64", 1);
  ck_assert(same(erdma::fabric::read_settings(nullptr), Settings()));
}

TEST(every_variable_is_listed_by_libfabric_with_its_values) {
  fi_param* params = nullptr;
  int count = 0;
  ck_assert_int_eq(fi_getparams(&params, &count), 0);
  for (const GoodCase& c : kGood) {
    bool found = false;
    for (int i = 0; i < count; ++i)
      if (std::string(params[i].name) == c.variable)
        found = contains(params[i].help_string, "Values: ");
    ck_assert_msg(found, "%s", c.variable);
  }
  fi_freeparams(params);
}

}  // namespace
