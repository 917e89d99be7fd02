#include "softerdma/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace softerdma {

Mapping::~Mapping() {
  if (x_address != nullptr) munmap(x_address, x_size);
}

Mapping Mapping::of(int fd, size_t size) {
  Mapping mapping;
  void* address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) return mapping;
  mapping.x_address = address;
  mapping.x_size = size;
  return mapping;
}

Mapping Mapping::create(const std::string& path, size_t size) {
  unlink(path.c_str());
  int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return {};
  Mapping mapping;
  if (ftruncate(fd, static_cast<off_t>(size)) == 0) mapping = of(fd, size);
  close(fd);
  if (!mapping) unlink(path.c_str());
  return mapping;
}

Mapping Mapping::open(const std::string& path) {
  int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return {};
  struct stat status {};
  Mapping mapping;
  if (fstat(fd, &status) == 0 && status.st_size > 0) {
    mapping = of(fd, static_cast<size_t>(status.st_size));
  }
  close(fd);
  return mapping;
}

}  // namespace softerdma
