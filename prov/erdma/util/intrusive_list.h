#pragma once

namespace erdma::util {

/// Links an object into at most one list per Tag. Unlinked = both pointers null.
template <typename Tag>
struct ListHook {
  ListHook* previous = nullptr;
  ListHook* next = nullptr;
  bool linked() const noexcept { return next != nullptr; }
  void unlink() noexcept {
    previous->next = next;
    // The caller unlinks linked objects only.  NOLINTNEXTLINE(clang-analyzer-core.NullDereference)
    next->previous = previous;
    previous = next = nullptr;
  }
};

/// Circular doubly linked list of T, which derives from ListHook<Tag>. It does not own its
/// elements.
template <typename T, typename Tag = T>
class IntrusiveList {
 public:
  using Hook = ListHook<Tag>;

  IntrusiveList() noexcept { x_head.previous = x_head.next = &x_head; }
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;

  bool empty() const noexcept { return x_head.next == &x_head; }
  T* front() noexcept { return empty() ? nullptr : cast(x_head.next); }
  T* next(T& element) noexcept {
    Hook* hook = static_cast<Hook&>(element).next;
    return hook == &x_head ? nullptr : cast(hook);
  }
  void push_back(T& element) noexcept { insert(*x_head.previous, element); }
  /// `later` must be in this list.
  void insert_before(T& later, T& element) noexcept {
    insert(*static_cast<Hook&>(later).previous, element);
  }
  void push_front(T& element) noexcept { insert(x_head, element); }
  T* pop_front() noexcept {
    T* element = front();
    if (element) static_cast<Hook*>(element)->unlink();
    return element;
  }
  static void erase(T& element) noexcept { static_cast<Hook&>(element).unlink(); }

 private:
  static T* cast(Hook* hook) noexcept { return static_cast<T*>(hook); }
  static void insert(Hook& after, T& element) noexcept {
    Hook& hook = element;
    hook.previous = &after;
    hook.next = after.next;
    after.next->previous = &hook;
    after.next = &hook;
  }

  Hook x_head;
};

}  // namespace erdma::util
