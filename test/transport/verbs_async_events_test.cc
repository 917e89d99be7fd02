#include <cerrno>
#include <memory>
#include <vector>

#include "fake/captured_log.h"
#include "transport/verbs/async_events.h"
#include "transport/verbs/registration.h"
#include "transport/verbs_rig.h"

/// Tests what is logged and reported of the events of a device.
namespace erdma::test {
namespace {

struct EventListener final : verbs::AsyncListener {
  void on_device_event(const verbs::DeviceEvent& event) noexcept override {
    events.push_back(event);
  }
  std::vector<verbs::DeviceEvent> events;
};

struct PortScene {
  /// The lines that this event causes.
  std::vector<std::string> notices_of(ibv_event_type type, int port) {
    ibv_async_event event{};
    event.event_type = type;
    event.element.port_num = port;
    rig.nic.events.push_back(event);
    g_log.clear();
    events.dispatch();
    std::vector<std::string> notices;
    for (const LogLine& line : g_log)
      if (line.level == FI_LOG_WARN) notices.push_back(line.text);
    return notices;
  }
  Rig rig;
  EventListener listener;
  verbs::AsyncEvents events{*rig.device, listener};
};

TEST(the_port_of_the_device_is_told_of) {
  PortScene scene;
  const auto down = scene.notices_of(IBV_EVENT_PORT_ERR, 1);
  ck_assert_uint_eq(down.size(), 1);
  ck_assert(contains(down[0], "fake0: port 1 is down"));
  const auto up = scene.notices_of(IBV_EVENT_PORT_ACTIVE, 1);
  ck_assert_uint_eq(up.size(), 1);
  ck_assert(contains(up[0], "fake0: port 1 is active again"));
  ck_assert(scene.listener.events.empty());
}

/// No connection uses it.
TEST(another_port_is_not_told_of, 2) {
  PortScene scene;
  const auto type = _i ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR;
  ck_assert(scene.notices_of(type, 2).empty());
  ck_assert(scene.rig.nic.events.empty());
}

TEST(a_failed_completion_queue_is_named_to_all_listeners) {
  PortScene scene;
  EventListener second;
  const verbs::AsyncEvents also(*scene.rig.device, second);
  ibv_cq queue{};
  ibv_async_event event{};
  event.event_type = IBV_EVENT_CQ_ERR;
  event.element.cq = &queue;
  scene.rig.nic.events.push_back(event);
  scene.events.dispatch();
  for (const EventListener* listener : {&scene.listener, &second}) {
    ck_assert_uint_eq(listener->events.size(), 1);
    ck_assert_ptr_eq(listener->events[0].completion_queue, &queue);
    ck_assert_uint_eq(listener->events[0].queue_pair, 0);
  }
}

/// From then on the kernel answers each command with EIO, which is no lack of locked memory.
TEST(a_device_that_failed_is_gone) {
  PortScene scene;
  ck_assert(!scene.rig.device->gone());
  const auto lines = scene.notices_of(IBV_EVENT_DEVICE_FATAL, 0);
  ck_assert_uint_eq(lines.size(), 1);
  ck_assert(contains(lines[0], "all its connections are lost"));
  ck_assert(scene.rig.device->gone());
  ck_assert_uint_eq(scene.listener.events.size(), 1);
  scene.rig.nic.refuse_regions = EIO;
  std::byte page[4096];
  ck_assert_ptr_null(verbs::register_host_memory(*scene.rig.device, page, sizeof(page), 0));
  ck_assert_int_eq(errno, ENODEV);
  verbs::ReceiveRegions regions(*scene.rig.device);
  verbs::ReceiveRegions::Part part;
  g_log.clear();
  ck_assert_int_eq(regions.take(4096, part), -EIO);
  ck_assert(only_log_line().empty());
}

}  // namespace
}  // namespace erdma::test
