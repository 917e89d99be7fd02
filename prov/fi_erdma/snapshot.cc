#include "fi_erdma/snapshot.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "util/stat_sequence.h"

namespace fi_erdma {
namespace {

// More than any version of the provider has, and few enough to read quickly.
constexpr uint32_t kMostKinds = 16;
constexpr uint32_t kMostFields = 1024;
constexpr size_t kLongestText = 4096;  ///< longer texts are cut off
constexpr char kSaysTooMuch[] =
    "the page, or those of all processes together, say more than statistics can";
constexpr size_t kCostOfBlock = 192;
constexpr int kAttempts = 8;       ///< to read a block that is being changed
constexpr int kAttemptsOfAll = 4;  ///< to read all blocks while the process closes endpoints

/// The page is mapped read-only, but std::atomic_ref takes no reference to const.
template <typename Word>
std::atomic_ref<Word> word_at(const std::byte* from) {
  return std::atomic_ref<Word>(*const_cast<Word*>(reinterpret_cast<const Word*>(from)));
}
template <typename Word>
Word load(const std::byte* from, std::memory_order order) {
  return word_at<Word>(from).load(order);
}

/// The bytes up to the first 0 byte.
std::string text_of(const char* from, size_t room) {
  std::string text(from, strnlen(from, room));
  text.resize(strnlen(text.c_str(), text.size()));  // it may change while it is read
  for (char& c : text)
    if (c < 0x20 || c > 0x7e) c = '?';
  return text;
}

bool is_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

class Reader {
 public:
  Reader(std::span<const std::byte> page, size_t most_cost)
      : x_page(page), x_most_cost(most_cost) {}

  ReadResult read() {
    if (x_most_cost == 0) return {std::nullopt, kSaysTooMuch, 0};
    if (const char* const fault = check_header()) return {std::nullopt, fault, 0};
    if (const char* const fault = read_kinds()) return {std::nullopt, fault, 0};
    read_fields();
    for (const BlockKind& kind : x_snapshot.kinds) x_shapes.push_back(shape_of(kind));
    if (!read_all_blocks()) return {std::nullopt, kSaysTooMuch, x_cost};
    drop_parts();
    return {std::move(x_snapshot), {}, x_cost};
  }

 private:
  struct Row {
    uint64_t offset;
    uint32_t block_bytes, used;
    uint32_t part_of;  ///< as in layout::Kind
    std::vector<uint32_t>
        rows;  ///< of each field of the kind: where it is, this row or that of a part
  };

  /// What the blocks of a kind have in common.
  struct Shape {
    Named<uint64_t> numbers;  ///< all 0
    Named<std::string> texts;
    std::vector<size_t> positions;  ///< of each field, among the numbers or the texts
  };

  static Shape shape_of(const BlockKind& kind) {
    std::shared_ptr<std::vector<std::string>> names[] = {
        std::make_shared<std::vector<std::string>>(), std::make_shared<std::vector<std::string>>()};
    const auto names_for = [&](const FieldInfo& field) -> std::vector<std::string>& {
      return *names[field.type == layout::Type::text];
    };
    for (const FieldInfo& field : kind.fields) names_for(field).push_back(field.name);
    for (const auto& list : names) std::ranges::sort(*list);
    Shape shape;
    for (const FieldInfo& field : kind.fields) {
      const auto& list = names_for(field);
      shape.positions.push_back(size_t(std::ranges::lower_bound(list, field.name) - list.begin()));
    }
    shape.numbers = Named<uint64_t>(names[0]);
    shape.texts = Named<std::string>(names[1]);
    return shape;
  }

  bool within(uint64_t offset, uint64_t count, uint64_t bytes) const {
    return offset <= x_page.size() &&
           count <= (x_page.size() - offset) / std::max<uint64_t>(bytes, 1);
  }

  const char* check_header() {
    if (x_page.size() < sizeof(x_header)) return "the page is too small";
    const bool ready = load<uint32_t>(x_page.data() + offsetof(layout::Header, ready),
                                      std::memory_order_acquire) == 1;
    std::memcpy(&x_header, x_page.data(), sizeof(x_header));
    if (std::memcmp(x_header.magic, layout::kMagic, sizeof(layout::kMagic)) != 0)
      return ready ? "this is no page of erdma's" : "the page is not ready";
    if (x_header.byte_order != layout::kByteOrder) return "the page has another byte order";
    if (x_header.layout != layout::kLayout)
      return "the page has another layout: use the fi_erdma of that version";
    if (!ready) return "the page is not ready";
    if (x_header.bytes != x_page.size()) return "the page has another size than it says";
    const bool sound = x_header.kinds <= kMostKinds && x_header.fields <= kMostFields &&
                       x_header.kind_bytes >= sizeof(layout::Kind) &&
                       x_header.field_bytes >= sizeof(layout::Field) &&
                       within(x_header.kinds_offset, x_header.kinds, x_header.kind_bytes) &&
                       within(x_header.fields_offset, x_header.fields, x_header.field_bytes);
    return sound ? nullptr : "the tables of the page are not sound";
  }

  const char* read_kinds() {
    for (uint32_t i = 0; i < x_header.kinds; ++i) {
      layout::Kind kind;
      std::memcpy(&kind, x_page.data() + x_header.kinds_offset + size_t(i) * x_header.kind_bytes,
                  sizeof(kind));
      const bool sound = kind.offset % 8 == 0 && kind.block_bytes % 8 == 0 &&
                         kind.block_bytes >= sizeof(layout::BlockHead) &&
                         kind.used <= kind.capacity &&
                         within(kind.offset, kind.capacity, kind.block_bytes) &&
                         kind.part_of <= i && (!kind.part_of || !x_rows[kind.part_of - 1].part_of);
      if (!sound) return "a table of blocks is not sound";
      std::string name = text_of(kind.name, sizeof(kind.name));
      if (!is_name(name)) name.clear();  // a name that cannot be looked up
      x_snapshot.kinds.push_back({std::move(name), {}, {}});
      x_rows.push_back({kind.offset, kind.block_bytes, kind.used, kind.part_of, {}});
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    return nullptr;
  }

  /// Leaves out fields of unknown type or outside of their block. Those of a part become fields of
  /// the kind to which the part belongs.
  void read_fields() {
    for (uint32_t i = 0; i < x_header.fields; ++i) {
      layout::Field field;
      std::memcpy(&field, x_page.data() + x_header.fields_offset + size_t(i) * x_header.field_bytes,
                  sizeof(field));
      if (field.kind >= x_rows.size() || field.offset < sizeof(layout::BlockHead)) continue;
      if (field.offset > x_rows[field.kind].block_bytes ||
          field.bytes > x_rows[field.kind].block_bytes - field.offset)
        continue;
      const auto type = layout::Type(field.type);
      const bool number = type == layout::Type::number && field.bytes == 8 && field.offset % 8 == 0;
      if (!number && type != layout::Type::text) continue;
      FieldInfo info{text_of(field.name, sizeof(field.name)),
                     text_of(field.unit, sizeof(field.unit)),
                     type,
                     layout::Meaning(field.meaning),
                     field.offset,
                     field.bytes};
      const size_t owner = x_rows[field.kind].part_of ? x_rows[field.kind].part_of - 1 : field.kind;
      auto& fields = x_snapshot.kinds[owner].fields;
      const auto is_it = [&](const FieldInfo& other) { return other.name == info.name; };
      if (!is_name(info.name) || std::ranges::any_of(fields, is_it)) continue;
      fields.push_back(std::move(info));
      x_rows[owner].rows.push_back(field.kind);
    }
  }

  /// Their fields are among those of other kinds.
  void drop_parts() {
    for (size_t i = x_rows.size(); i-- > 0;)
      if (x_rows[i].part_of) x_snapshot.kinds.erase(x_snapshot.kinds.begin() + ptrdiff_t(i));
  }

  /// The sequence of the process block, which is odd while the process takes over the counters of
  /// an endpoint. 0: there is no such block.
  uint32_t sequence() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    for (size_t i = 0; i < x_rows.size(); ++i)
      if (x_snapshot.kinds[i].name == "process" && x_rows[i].used > 0)
        return load<uint32_t>(x_page.data() + x_rows[i].offset, std::memory_order_acquire);
    return 0;
  }

  /// Reads all blocks consistently. If the process keeps closing endpoints meanwhile, its own block
  /// counts as unsettled. Returns false if the page is too large.
  bool read_all_blocks() {
    for (int attempt = 0; attempt < kAttemptsOfAll; ++attempt) {
      const uint32_t before = sequence();
      x_cost = 0;
      for (size_t i = 0; i < x_rows.size(); ++i) {
        x_snapshot.kinds[i].blocks.clear();
        x_snapshot.kinds[i].unsettled = 0;
        if (x_rows[i].part_of) continue;
        if (!read_blocks(x_snapshot.kinds[i], x_rows[i], x_shapes[i])) return false;
      }
      x_snapshot.sequence = before;
      if (before % 2 == 0 && sequence() == before) return true;
    }
    for (BlockKind& kind : x_snapshot.kinds)
      if (kind.name == "process") kind.unsettled = 1;
    return true;
  }

  bool read_blocks(BlockKind& kind, const Row& row, const Shape& shape) {
    for (uint32_t i = 0; i < row.used; ++i) {
      const std::byte* const from = x_page.data() + row.offset + size_t(i) * row.block_bytes;
      x_cost += kCostOfBlock;
      Block block{i, {}, {}};
      switch (read_block(kind, row, shape, from, block)) {
        case State::free:
          break;
        case State::unsettled:
          ++kind.unsettled;
          break;
        case State::whole:
          kind.blocks.push_back(std::move(block));
      }
      if (x_cost > x_most_cost) return false;
    }
    return true;
  }

  enum class State { free, unsettled, whole };

  /// Retries while the process changes the block, but not for long, as the process may be stopped.
  State read_block(const BlockKind& kind, const Row& row, const Shape& shape, const std::byte* from,
                   Block& block) {
    for (int attempt = 0; attempt < kAttempts && x_cost <= x_most_cost; ++attempt) {
      const auto sequence = word_at<uint32_t>(from);
      const uint32_t before = layout::begin_reading(sequence);
      if (before % 2 != 0) continue;
      if (!load<uint32_t>(from + offsetof(layout::BlockHead, in_use), std::memory_order_relaxed))
        return State::free;
      block.numbers = shape.numbers;
      block.texts = shape.texts;
      copy(kind, row, shape, block);
      if (layout::unchanged(sequence, before)) return State::whole;
    }
    return State::unsettled;
  }

  /// Where a field of the block is. Null: in a part that is not in use.
  const std::byte* place_of(const Row& row, size_t field, uint32_t index) const {
    const Row& held = x_rows[row.rows[field]];
    if (held.part_of && index >= held.used) return nullptr;
    const std::byte* const block = x_page.data() + held.offset + size_t(index) * held.block_bytes;
    if (held.part_of &&
        !load<uint32_t>(block + offsetof(layout::BlockHead, in_use), std::memory_order_acquire))
      return nullptr;
    return block;
  }

  void copy(const BlockKind& kind, const Row& row, const Shape& shape, Block& block) {
    for (size_t i = 0; i < kind.fields.size(); ++i) {
      const FieldInfo& field = kind.fields[i];
      const std::byte* const from = place_of(row, i, block.index);
      const size_t at = shape.positions[i];
      const bool is_number = field.type == layout::Type::number;
      if ((x_cost += is_number ? sizeof(uint64_t) : sizeof(std::string)) > x_most_cost) return;
      if (is_number) {
        if (from)
          block.numbers.values()[at] =
              load<uint64_t>(from + field.offset, std::memory_order_relaxed);
        continue;
      }
      if (!from) continue;
      std::string text = text_of(reinterpret_cast<const char*>(from) + field.offset,
                                 std::min<size_t>(field.bytes, kLongestText));
      x_cost += text.size();
      block.texts.values()[at] = std::move(text);
    }
  }

  std::span<const std::byte> x_page;
  layout::Header x_header{};
  std::vector<Row> x_rows;
  std::vector<Shape> x_shapes;
  Snapshot x_snapshot;
  const size_t x_most_cost;
  size_t x_cost = 0;
};

}  // namespace

std::optional<uint64_t> Block::number(std::string_view name) const {
  const uint64_t* const found = numbers.find(name);
  return found && *found != layout::kUnknown ? std::optional(*found) : std::nullopt;
}

std::string Block::text(std::string_view name) const {
  const std::string* const found = texts.find(name);
  return found ? *found : std::string();
}

const BlockKind* Snapshot::kind(std::string_view name) const {
  const auto is_it = [&](const BlockKind& kind) { return kind.name == name; };
  const auto found = std::ranges::find_if(kinds, is_it);
  return found == kinds.end() ? nullptr : &*found;
}

std::span<const Block> Snapshot::blocks(std::string_view name) const {
  const BlockKind* const found = kind(name);
  return found ? std::span<const Block>(found->blocks) : std::span<const Block>();
}

const Block* BlockKind::block(uint32_t index) const {
  const auto found = std::ranges::lower_bound(blocks, index, {}, &Block::index);
  return found == blocks.end() || found->index != index ? nullptr : &*found;
}

const Block* Snapshot::process() const {
  const std::span<const Block> found = blocks("process");
  return found.empty() ? nullptr : &found.front();
}

unsigned Snapshot::unsettled() const {
  unsigned blocks = 0;
  for (const BlockKind& kind : kinds) blocks += kind.unsettled;
  return blocks;
}

PeersOf peers_of(const Snapshot& snapshot) {
  PeersOf found;
  for (const Block& peer : snapshot.blocks("peer"))
    if (const auto endpoint = peer.number("endpoint")) found[*endpoint].push_back(&peer);
  return found;
}

ReadResult read_page(std::span<const std::byte> page, size_t most_cost) {
  if (page.size() > layout::kMostBytes) return {std::nullopt, "the page is too large", 0};
  return Reader(page, most_cost).read();
}

}  // namespace fi_erdma
