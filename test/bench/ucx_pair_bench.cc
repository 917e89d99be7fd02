// ucx_pair_bench version|curves|patterns|senders N: measures UCX between processes of one host,
// with the loops of fi_pair_bench. UCX_TLS chooses the transports.
#include <sched.h>
#include <ucp/api/ucp.h>

#include <cstring>

#include "patterns.h"

namespace erdma::bench {
namespace {

void must(ucs_status_t status, const char* what) {
  if (status != UCS_OK) clients::fail("%s: %s", what, ucs_status_string(status));
}

/// A worker and the endpoint to one other process. They live as long as their process.
class UcxLink {
 public:
  UcxLink(Board& board, int who, bool yields)
      : x_board(board), x_who(who), x_yields(yields), x_slots(kWindow) {
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG;
    ucp_config_t* config = nullptr;
    must(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read");
    must(ucp_init(&params, config, &x_context), "ucp_init");
    ucp_config_release(config);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    must(ucp_worker_create(x_context, &worker, &x_worker), "ucp_worker_create");
    publish();
    for (unsigned i = 0; i < x_slots.size(); ++i) x_slots[i] = {this, i};
  }

  /// Waits for the address of process `who`.
  void connect(int who) {
    while (!x_board.published(who)) poll([](unsigned, size_t) {});
    const std::string address = x_board.name(who);
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    must(ucp_ep_create(x_worker, &params, &x_other), "ucp_ep_create");
  }

  bool first() const noexcept { return x_who == 0; }
  int sending() const noexcept { return x_sending; }
  void from_any(bool) noexcept {}  // UCX matches by the tag alone

  void post(char* data, size_t length, uint64_t tag, uint64_t ignore, unsigned slot) {
    ucp_request_param_t param{};
    param.op_attr_mask =
        UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    param.cb.recv = on_received;
    param.user_data = &x_slots[slot];
    const auto request = ucp_tag_recv_nbx(x_worker, data, length, tag, ~ignore, &param);
    if (UCS_PTR_IS_ERR(request)) must(UCS_PTR_STATUS(request), "ucp_tag_recv_nbx");
  }

  void send(const char* data, size_t length, uint64_t tag) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = on_sent;
    param.user_data = this;
    const auto request = ucp_tag_send_nbx(x_other, data, length, tag, &param);
    if (UCS_PTR_IS_ERR(request)) must(UCS_PTR_STATUS(request), "ucp_tag_send_nbx");
    if (request) ++x_sending;
  }
  void put(const char* data, size_t length, uint64_t tag) { send(data, length, tag); }

  template <class F>
  void poll(F&& received) {
    if (ucp_worker_progress(x_worker) == 0 && x_yields) ::sched_yield();
    // The caller may post receives, which may complete at once.
    for (size_t i = 0; i < x_done.size(); ++i) {
      const auto [slot, length] = x_done[i];
      received(slot, length);
    }
    x_done.clear();
  }

 private:
  struct Slot {
    UcxLink* link;
    unsigned number;
  };

  void publish() {
    ucp_address_t* address = nullptr;
    size_t length = 0;
    must(ucp_worker_get_address(x_worker, &address, &length), "ucp_worker_get_address");
    x_board.publish(x_who, {reinterpret_cast<const char*>(address), length});
    ucp_worker_release_address(x_worker, address);
  }
  static void on_received(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info,
                          void* user) {
    must(status, "a receive");
    auto* const slot = static_cast<Slot*>(user);
    slot->link->x_done.emplace_back(slot->number, info->length);
    ucp_request_free(request);
  }
  static void on_sent(void* request, ucs_status_t status, void* user) {
    must(status, "a send");
    --static_cast<UcxLink*>(user)->x_sending;
    ucp_request_free(request);
  }

  Board& x_board;
  const int x_who;
  const bool x_yields;
  int x_sending = 0;
  ucp_context_h x_context = nullptr;
  ucp_worker_h x_worker = nullptr;
  ucp_ep_h x_other = nullptr;
  std::vector<Slot> x_slots;
  std::vector<std::pair<unsigned, size_t>> x_done;
};

int run_process(Board& board, const std::string& what, int who, int processes) {
  processes == 2 || who == 0 ? pin(who) : pin_beside_first();
  UcxLink link(board, who, processes > 2 && who != 0);
  link.connect(who == 0 ? processes - 1 : 0);
  if (processes == 2) print_line(board, who == 0, false);
  if (what == "curves") measure_all_sizes(link);
  if (what == "patterns") measure_all_patterns(link);
  if (what == "senders") measure_all_senders(link, board, processes - 1);
  // No process ends while another one still needs its progress.
  for (board.words[0].fetch_add(1); board.words[0] != uint64_t(processes);)
    link.poll([](unsigned, size_t) {});
  if (processes == 2) print_line(board, who == 0, true);
  return 0;
}

int run(const std::string& what, int processes) {
  Board& board = Board::create();
  std::vector<pid_t> children;
  for (int who = 0; who < processes; ++who)
    children.push_back(clients::spawn(
        [&board, &what, who, processes] { return run_process(board, what, who, processes); }));
  return clients::reap(children, 600);
}

}  // namespace
}  // namespace erdma::bench

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "version") return std::puts(ucp_get_version_string()) < 0;
  if (what == "curves" || what == "patterns") return erdma::bench::run(what, 2);
  const int senders = what == "senders" && argc > 2 ? std::atoi(argv[2]) : 0;
  if (senders > 0 && senders < erdma::clients::Board::kProcesses)
    return erdma::bench::run(what, senders + 1);
  std::fprintf(stderr, "usage: ucx_pair_bench version|curves|patterns|senders N\n");
  return 2;
}
