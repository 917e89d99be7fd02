#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fi_erdma {

/// Values by name. A page has thousands of blocks with the same names, so copies share the names.
template <typename Value>
class Named {
 public:
  using Names = std::vector<std::string>;

  Named() = default;
  Named(std::initializer_list<std::pair<std::string_view, Value>> entries) {
    for (const auto& [name, value] : entries) (*this)[name] = value;
  }
  /// `names`: each once, in alphabetical order. The values are those of an empty constructor.
  explicit Named(std::shared_ptr<const Names> names)
      : x_names(std::move(names)), x_values(x_names->size()) {}

  Value* find(std::string_view name) { return const_cast<Value*>(std::as_const(*this).find(name)); }
  const Value* find(std::string_view name) const {
    if (!x_names) return nullptr;
    const auto found = std::ranges::lower_bound(*x_names, name);
    return found == x_names->end() || *found != name ? nullptr : &x_values[index_of(found)];
  }
  /// Adds a name that is new.
  Value& operator[](std::string_view name) {
    if (Value* const known = find(name)) return *known;
    auto names = x_names ? std::make_shared<Names>(*x_names) : std::make_shared<Names>();
    const auto at = names->insert(std::ranges::lower_bound(*names, name), std::string(name));
    const auto index = at - names->begin();
    x_names = std::move(names);
    return *x_values.insert(x_values.begin() + index, Value());
  }
  /// In the order of the names.
  std::vector<Value>& values() { return x_values; }
  const std::vector<Value>& values() const { return x_values; }

 private:
  size_t index_of(Names::const_iterator name) const { return size_t(name - x_names->begin()); }

  std::shared_ptr<const Names> x_names;
  std::vector<Value> x_values;
};

}  // namespace fi_erdma
