// A forked child that lives on holds no resources of its parent's endpoints: over shared memory,
// and through the simulated adapter in both of its personalities.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

#include "fabric/descriptors.h"
#include "fabric/rig.h"
#include "quiet_fork.h"
#include "transport/simulated_device.h"

namespace {

using namespace erdma::test;

/// True for the pipes of this test, and for descriptors of the simulated adapter: files, pipes, the
/// objects that its thread sleeps on, and the socket that occupies the port of an rdma_cm listener.
bool is_not_the_providers(const std::string& target) {
  if (target.rfind("pipe:", 0) == 0) return true;
  if (std::string(g_device) == "shm") return false;
  const char* const personality = std::getenv("SOFTERDMA_PERSONALITY");
  return target.find("softerdma") != std::string::npos ||
         target.rfind("anon_inode:[event", 0) == 0 ||
         (personality && std::string(personality) == "standard" && target.rfind("socket:", 0) == 0);
}

/// One of the descriptors that the parent opened since `before` and that the child can still use;
/// empty: there is none.
std::string kept(const std::map<int, std::string>& before,
                 const std::map<int, std::string>& parents) {
  for (const auto& [fd, target] : descriptors()) {
    if (before.contains(fd) || is_not_the_providers(target)) continue;
    for (const auto& [number, parent] : parents)
      if (target == parent && target.rfind("anon_inode:", 0) != 0) return target;
    // A socket stands in for a closed descriptor.
    if (target.rfind("socket:", 0) != 0) return target;
  }
  return "";
}

void choose_device() {
  if (!g_on_devices) return;
  g_device = "erdma_0";
  setenv("FI_ERDMA_SHM", "off", 1);
}

/// A child that reports the descriptors that it kept, and lives until the parent ends it.
class Helper {
 public:
  explicit Helper(const std::map<int, std::string>& before) {
    ck_assert_int_eq(pipe(x_says), 0);
    ck_assert_int_eq(pipe(x_stays), 0);
    const auto parents = descriptors();
    x_pid = quiet_fork();
    if (x_pid > 0) {
      close(x_says[1]);
      close(x_stays[0]);
      return;
    }
    close(x_stays[1]);
    const std::string found = kept(before, parents);
    if (!found.empty()) (void)!write(x_says[1], found.data(), found.size());
    close(x_says[1]);
    char byte;
    (void)!read(x_stays[0], &byte, 1);
    _exit(0);
  }
  ~Helper() {
    close(x_stays[1]);
    waitpid(x_pid, nullptr, 0);
    close(x_says[0]);
  }
  std::string says() {
    char text[256] = {};
    (void)!read(x_says[0], text, sizeof(text) - 1);
    return text;
  }

 private:
  int x_says[2], x_stays[2];
  pid_t x_pid;
};

/// Opens an endpoint with the same name, as a process does that is started as a replacement.
void open_again_at(Root& root, const std::vector<char>& name) {
  std::free(root.info->src_addr);
  root.info->src_addr = std::malloc(name.size());
  root.info->src_addrlen = name.size();
  std::memcpy(root.info->src_addr, name.data(), name.size());
  const Port again(root);
  ck_assert(again.name() == name);
}

}  // namespace

SUITE(.run = here_and_on_devices, .once = choose_device);

TEST(child_that_stays_holds_no_descriptor_and_no_port_of_its_parent) {
  provider();
  const auto before = descriptors();
  Root root;
  std::vector<char> name;
  std::unique_ptr<Helper> helper;
  {
    Port a(root, FI_WAIT_FD), b(root, FI_WAIT_FD);
    const fi_addr_t to = a.insert(b), back = b.insert(a);
    for (const size_t length : {8u, 100'000u}) {
      exchange(a, b, to, length);
      exchange(b, a, back, length);
    }
    name = b.name();
    helper = std::make_unique<Helper>(before);
    const std::string found = helper->says();
    ck_assert_msg(found.empty(), "the child has %s", found.c_str());
    exchange(a, b, to, 100'000);  // the parent's are as they were
  }
  open_again_at(root, name);
}
