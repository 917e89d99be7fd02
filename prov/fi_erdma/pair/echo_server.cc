#include "fi_erdma/pair/echo_server.h"

#include <sched.h>

#include <cstring>
#include <deque>

#include "fi_erdma/libfabric.h"
#include "fi_erdma/pair/memory.h"

namespace fi_erdma::pair {
namespace {

/// Receives a message and sends it back, in a loop.
class Slot {
 public:
  Slot(Endpoint& endpoint, fi_addr_t client, size_t largest)
      : x_endpoint(endpoint), x_client(client), x_buffer(endpoint, largest + 1, 0) {
    receive();
  }
  void step() {
    if (x_state == State::receiving && x_operation.done()) {
      if (x_operation.error)
        fail("a receive: %s", libfabric().error_text(-x_operation.error).c_str());
      x_length = x_operation.length;
      x_tag = x_operation.tag;
      x_state = State::to_send;
    }
    if (x_state == State::to_send) send();
    if (x_state == State::sending && x_operation.done()) receive();
  }

 private:
  enum class State { receiving, to_send, sending };

  void receive() {
    x_operation = {};
    x_endpoint.post(
        [&] {
          return fi_trecv(x_endpoint.ep(), x_buffer.at(), x_buffer.size(), x_buffer.desc(),
                          x_client, 0, ~kUnheard, &x_operation);
        },
        "fi_trecv");
    x_state = State::receiving;
  }
  void send() {
    x_operation = {};
    const ssize_t rc = fi_tsend(x_endpoint.ep(), x_buffer.at(), x_length, x_buffer.desc(), x_client,
                                x_tag, &x_operation);
    if (rc == 0) x_state = State::sending;
    if (rc != 0 && rc != -FI_EAGAIN) must(rc, "fi_tsend");
  }

  Endpoint& x_endpoint;
  const fi_addr_t x_client;
  Buffer x_buffer;
  Operation x_operation;
  State x_state = State::receiving;
  size_t x_length = 0;
  uint64_t x_tag = 0;
};

}  // namespace

int serve_echoes(const Options& options, const std::string& client, size_t largest,
                 Channel& parent) {
  Endpoint endpoint(options, FI_TAGGED | FI_RMA | FI_DIRECTED_RECV);
  Buffer window(endpoint, largest + 1, FI_REMOTE_READ | FI_REMOTE_WRITE);
  const fi_addr_t address = endpoint.insert(client);
  std::deque<Slot> slots;
  for (int i = 0; i < 8; ++i) slots.emplace_back(endpoint, address, largest);

  Contact contact;
  const std::string name = endpoint.name();
  contact.name_length = name.copy(contact.name, sizeof contact.name);
  contact.remote = window.remote();
  contact.key = window.key();
  parent.send(bytes_of(contact));
  for (unsigned turns = 1;; ++turns) {
    endpoint.progress();
    for (Slot& slot : slots) slot.step();
    if (turns % 256 != 0) continue;
    ::sched_yield();
    if (parent.ready()) return kPassed;
  }
}

}  // namespace fi_erdma::pair
