// raw_verbs ADDRESS: measures an adapter without a library on top: SENDs there and back of 8 B to
// 64 KiB, a stream of 8 B SENDs, RDMA WRITEs and READs of 8 B and of 1 MiB, between two processes
// over rdma_cm, and 8 B READs of a process from itself. The results are the yardstick of the NIC
// transport. Keys, values and BENCH_CORES are those of fi_pair_bench.
#include <arpa/inet.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#include "../clients/fi_common.h"

namespace {

using erdma::clients::Board;
using erdma::clients::fail;

constexpr int kReceives = 128;
constexpr int kSlot = 64;                     ///< distance between the memory of two receives
constexpr size_t kMedium = size_t{64} << 10;  ///< bytes of each receive; receives overlap
constexpr int kSignalEvery = 16;              ///< every 16th small send is signalled
constexpr int kWindow = 64;                   ///< small messages without an acknowledgement
constexpr int kAckEvery = 16;
constexpr size_t kLarge = 1 << 20;
constexpr int kLargeWindow = 8;

void must(int rc, const char* what) {
  if (rc != 0) fail("%s: %s", what, strerror(rc < 0 ? errno : rc));
}
template <typename T>
T* must(T* object, const char* what) {
  if (!object) fail("%s: %s", what, strerror(errno));
  return object;
}

double now_us() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return double(time.tv_sec) * 1e6 + double(time.tv_nsec) / 1e3;
}

double median(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

void print(const char* key, double value) {
  std::printf("%s %.5f\n", key, value);
  std::fflush(stdout);
}

void pin(int which) {
  int cores[2] = {0, 1};
  if (const char* text = std::getenv("BENCH_CORES")) std::sscanf(text, "%d %d", cores, cores + 1);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(size_t(cores[which]), &set);
  must(::sched_setaffinity(0, sizeof set, &set), "sched_setaffinity");
}

/// Memory that the other side may write to.
struct Target {
  uint64_t address;
  uint32_t rkey;
};

class Side {
 public:
  /// The word `port_word` of the board tells the other side the port of the listening side.
  Side(Board& board, bool first, const char* address, size_t port_word = 0)
      : x_board(board), x_port(board.words[port_word]), x_first(first) {
    x_channel = must(rdma_create_event_channel(), "rdma_create_event_channel");
    sockaddr_in in{};
    in.sin_family = AF_INET;
    if (inet_pton(AF_INET, address, &in.sin_addr) != 1) fail("%s is no IPv4 address", address);
    first ? connect(in) : accept(in);
  }

  /// Measures a connection whose other side is in this process.
  void run_loop() { print("local_read_8", median_of(1000, IBV_WR_RDMA_READ, 8, 20, 1)); }
  void run() {
    half_round_trip(8, 2000, 20);
    for (size_t length = 1024; length <= kMedium; length *= 4) half_round_trip(length, 500, 2);
    rate();
    one_sided();
    bandwidth();
  }

 private:
  rdma_cm_event* expect(rdma_cm_event_type type) {
    rdma_cm_event* event = nullptr;
    must(rdma_get_cm_event(x_channel, &event), "rdma_get_cm_event");
    if (event->event != type)
      fail("%s instead of %s", rdma_event_str(event->event), rdma_event_str(type));
    return event;
  }

  void accept(sockaddr_in in) {
    rdma_cm_id* listener = nullptr;
    must(rdma_create_id(x_channel, &listener, nullptr, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_bind_addr(listener, reinterpret_cast<sockaddr*>(&in)), "rdma_bind_addr");
    must(rdma_listen(listener, 1), "rdma_listen");
    x_port = ntohs(rdma_get_src_port(listener));
    rdma_cm_event* event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    x_id = event->id;
    std::memcpy(&x_remote, event->param.conn.private_data, sizeof x_remote);
    rdma_ack_cm_event(event);
    prepare();
    rdma_conn_param param = terms();
    must(rdma_accept(x_id, &param), "rdma_accept");
    rdma_ack_cm_event(expect(RDMA_CM_EVENT_ESTABLISHED));
  }

  void connect(sockaddr_in in) {
    while (x_port == 0) ::usleep(100);
    in.sin_port = htons(uint16_t(x_port));
    must(rdma_create_id(x_channel, &x_id, nullptr, RDMA_PS_TCP), "rdma_create_id");
    must(rdma_resolve_addr(x_id, nullptr, reinterpret_cast<sockaddr*>(&in), 2000), "resolve_addr");
    rdma_ack_cm_event(expect(RDMA_CM_EVENT_ADDR_RESOLVED));
    must(rdma_resolve_route(x_id, 2000), "rdma_resolve_route");
    rdma_ack_cm_event(expect(RDMA_CM_EVENT_ROUTE_RESOLVED));
    prepare();
    rdma_conn_param param = terms();
    must(rdma_connect(x_id, &param), "rdma_connect");
    rdma_cm_event* event = expect(RDMA_CM_EVENT_ESTABLISHED);
    std::memcpy(&x_remote, event->param.conn.private_data, sizeof x_remote);
    rdma_ack_cm_event(event);
  }

  rdma_conn_param terms() {
    x_own = {reinterpret_cast<uint64_t>(x_bulk.data()), x_bulk_region->rkey};
    rdma_conn_param param{};
    param.private_data = &x_own;
    param.private_data_len = sizeof x_own;
    param.responder_resources = param.initiator_depth = kLargeWindow;
    param.retry_count = 7;
    return param;
  }

  void prepare() {
    x_cq = must(ibv_create_cq(x_id->verbs, 1024, nullptr, nullptr, 0), "ibv_create_cq");
    ibv_pd* pd = must(ibv_alloc_pd(x_id->verbs), "ibv_alloc_pd");
    ibv_qp_init_attr attr{};
    attr.qp_type = IBV_QPT_RC;
    attr.send_cq = attr.recv_cq = x_cq;
    attr.cap = {256, kReceives, 1, 1, 64};
    must(rdma_create_qp(x_id, pd, &attr), "rdma_create_qp");
    x_slots.resize(size_t{kReceives} * kSlot + kMedium);
    x_bulk.resize(kLarge * kLargeWindow);
    x_slot_region =
        must(ibv_reg_mr(pd, x_slots.data(), x_slots.size(), IBV_ACCESS_LOCAL_WRITE), "ibv_reg_mr");
    x_bulk_region =
        must(ibv_reg_mr(pd, x_bulk.data(), x_bulk.size(),
                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ),
             "ibv_reg_mr");
    for (int i = 0; i < kReceives; ++i) receive(uint64_t(i));
  }

  void receive(uint64_t slot) {
    ibv_sge sge{reinterpret_cast<uint64_t>(x_slots.data() + slot * kSlot), kMedium,
                x_slot_region->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = slot;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    must(std::abs(ibv_post_recv(x_id->qp, &wr, &bad)), "ibv_post_recv");
  }

  void send(size_t length = 8) {
    const uint64_t payload = x_sent++;
    while (queue_full()) poll();
    ibv_sge sge{reinterpret_cast<uint64_t>(&payload), sizeof payload, 0};
    if (length > 8)
      sge = {reinterpret_cast<uint64_t>(x_bulk.data()), uint32_t(length), x_bulk_region->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    if (length == 8) wr.send_flags = IBV_SEND_INLINE;
    if (x_sent % kSignalEvery == 0) {
      wr.send_flags |= IBV_SEND_SIGNALED;
      ++x_signals;
    }
    must(std::abs(ibv_post_send(x_id->qp, &wr, &bad)), "ibv_post_send");
  }
  bool queue_full() const { return x_signals >= 8; }

  /// Counts the messages that have arrived, and posts their receives again.
  void poll() {
    ibv_wc done[16];
    const int count = ibv_poll_cq(x_cq, 16, done);
    for (int i = 0; i < count; ++i) {
      if (done[i].status != IBV_WC_SUCCESS) fail("%s", ibv_wc_status_str(done[i].status));
      if (done[i].opcode & IBV_WC_RECV) {
        receive(done[i].wr_id);
        ++x_received;
      } else if (done[i].opcode == IBV_WC_RDMA_WRITE || done[i].opcode == IBV_WC_RDMA_READ) {
        --x_writes;
      } else {
        --x_signals;
      }
    }
  }
  void await(uint64_t received) {
    while (x_received < received) poll();
  }

  void turns(size_t length, int count) {
    for (int i = 0; i < count; ++i) {
      if (x_first) send(length);
      await(++x_expected);
      if (!x_first) send(length);
    }
  }
  void half_round_trip(size_t length, int blocks, int count) {
    turns(length, blocks * count / 10);
    std::vector<double> samples;
    for (int block = 0; block < blocks; ++block) {
      const double start = now_us();
      turns(length, count);
      samples.push_back((now_us() - start) / count / 2);
    }
    if (x_first) print(("half_" + std::to_string(length)).c_str(), median(samples));
  }

  double stream(int count) {
    const double start = now_us();
    if (x_first) {
      const uint64_t before = x_expected;
      for (int i = 0; i < count; ++i) {
        while (uint64_t(i) >= kWindow + (x_received - before) * kAckEvery) poll();
        send();
      }
      await(x_expected += uint64_t(count / kAckEvery));
    } else {
      for (int i = 0; i < count / kAckEvery; ++i) {
        await(x_expected += kAckEvery);
        send();
      }
    }
    return double(count) / (now_us() - start);
  }
  void rate() {
    stream(16000);
    std::vector<double> samples;
    for (int block = 0; block < 5; ++block) samples.push_back(stream(96000));
    if (x_first) print("rate", median(samples));
  }

  void access(ibv_wr_opcode opcode, int slot, size_t length) {
    const size_t at = kLarge * size_t(slot);
    ibv_sge sge{reinterpret_cast<uint64_t>(x_bulk.data() + at), uint32_t(length),
                x_bulk_region->lkey};
    ibv_send_wr wr{}, *bad = nullptr;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (opcode == IBV_WR_RDMA_WRITE && length <= 64) wr.send_flags |= IBV_SEND_INLINE;
    wr.wr.rdma = {x_remote.address + at, x_remote.rkey};
    must(std::abs(ibv_post_send(x_id->qp, &wr, &bad)), "ibv_post_send");
    ++x_writes;
  }
  /// Returns the microseconds of each access.
  double access_many(ibv_wr_opcode opcode, size_t length, int count, int window) {
    const double start = now_us();
    for (int i = 0; i < count; ++i) {
      while (x_writes >= window) poll();
      access(opcode, i % window, length);
    }
    while (x_writes > 0) poll();
    return (now_us() - start) / count;
  }
  double median_of(int blocks, ibv_wr_opcode opcode, size_t length, int count, int window) {
    access_many(opcode, length, count, window);
    std::vector<double> samples;
    for (int block = 0; block < blocks; ++block)
      samples.push_back(access_many(opcode, length, count, window));
    return median(samples);
  }
  /// The other side polls, as a provider's progress would.
  void one_sided() {
    if (x_first) {
      print("write_8", median_of(1000, IBV_WR_RDMA_WRITE, 8, 20, 1));
      print("read_8", median_of(1000, IBV_WR_RDMA_READ, 8, 20, 1));
      send();
    } else {
      await(++x_expected);
    }
  }
  void bandwidth() {
    if (x_first) {
      const auto gigabytes = [&](ibv_wr_opcode opcode) {
        return double(kLarge) / median_of(20, opcode, kLarge, 32, kLargeWindow) / 1e3;
      };
      const double writes = gigabytes(IBV_WR_RDMA_WRITE);
      print("bandwidth_1048576", writes);
      print("write_bandwidth", writes);
      print("read_bandwidth", gigabytes(IBV_WR_RDMA_READ));
      send();
    } else {
      await(++x_expected);
    }
  }

  Board& x_board;
  std::atomic<uint64_t>& x_port;
  const bool x_first;
  rdma_event_channel* x_channel = nullptr;
  rdma_cm_id* x_id = nullptr;
  ibv_cq* x_cq = nullptr;
  ibv_mr *x_slot_region = nullptr, *x_bulk_region = nullptr;
  std::vector<std::byte> x_slots, x_bulk;
  Target x_own{}, x_remote{};
  uint64_t x_sent = 0, x_received = 0, x_expected = 0;
  int x_signals = 0, x_writes = 0;
};

void measure_loop(Board& board, const char* address) {
  constexpr size_t kPortWord = 2;
  std::unique_ptr<Side> answers;
  std::thread accepting(
      [&] { answers = std::make_unique<Side>(board, false, address, kPortWord); });
  Side side(board, true, address, kPortWord);
  accepting.join();
  side.run_loop();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) fail("usage: raw_verbs ADDRESS");
  Board& board = Board::create();
  std::vector<pid_t> children;
  for (const bool first : {true, false})
    children.push_back(erdma::clients::spawn([&, first] {
      pin(first ? 0 : 1);
      Side side(board, first, argv[1]);
      side.run();
      if (first) measure_loop(board, argv[1]);
      // No process ends while the other one still polls.
      board.words[1].fetch_add(1);
      while (board.words[1] < 2) ::usleep(100);
      return 0;
    }));
  return erdma::clients::reap(children, 50);
}
