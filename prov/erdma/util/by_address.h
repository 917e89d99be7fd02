#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "util/socket_address.h"

namespace erdma::util {

/// Owns objects that have an address, finds them by it, and keeps all of them. T has the address as
/// a member `address`, or as a function. An object takes 11 to 22 bytes of the table, where a map,
/// which has each address a second time, takes 72. Not thread-safe.
/// Invariant: open addressing with linear probing, in a power of two of places or none, of which a
/// quarter is free.
template <typename T>
class ByAddress {
  using Places = std::vector<std::unique_ptr<T>>;

 public:
  /// Yields T*, in no particular order. add() ends its validity.
  class Iterator {
   public:
    Iterator(typename Places::const_iterator at, typename Places::const_iterator end) noexcept
        : x_at(at), x_end(end) {
      skip();
    }
    T* operator*() const noexcept { return x_at->get(); }
    Iterator& operator++() noexcept {
      ++x_at;
      skip();
      return *this;
    }
    bool operator==(const Iterator& other) const noexcept { return x_at == other.x_at; }

   private:
    void skip() noexcept {
      while (x_at != x_end && !*x_at) ++x_at;
    }
    typename Places::const_iterator x_at, x_end;
  };
  Iterator begin() const noexcept { return {x_places.begin(), x_places.end()}; }
  Iterator end() const noexcept { return {x_places.end(), x_places.end()}; }

  /// Null: there is none.
  T* find(const SocketAddress& address) const noexcept {
    return x_places.empty() ? nullptr : x_places[place_of(x_places, address)].get();
  }
  /// No other object has its address. If this throws std::bad_alloc, nothing has changed, except
  /// that `object` is destroyed.
  T& add(std::unique_ptr<T> object) {
    if (x_size + 1 > x_places.size() / 4 * 3) grow();
    std::unique_ptr<T>& place = x_places[place_of(x_places, address_of(*object))];
    place = std::move(object);
    ++x_size;
    return *place;
  }

 private:
  static constexpr size_t kFewest = 8;

  static const SocketAddress& address_of(const T& object) noexcept {
    if constexpr (requires { object.address(); })
      return object.address();
    else
      return object.address;
  }
  /// The place of the object with this address, or the free one where it belongs.
  static size_t place_of(const Places& places, const SocketAddress& address) noexcept {
    const size_t mask = places.size() - 1;
    size_t at = size_t(address.hash()) & mask;
    while (places[at] && !(address_of(*places[at]) == address)) at = (at + 1) & mask;
    return at;
  }
  void grow() {
    Places more(x_places.empty() ? kFewest : 2 * x_places.size());
    for (std::unique_ptr<T>& object : x_places)
      if (object) more[place_of(more, address_of(*object))] = std::move(object);
    x_places.swap(more);
  }

  Places x_places;
  size_t x_size = 0;
};

}  // namespace erdma::util
