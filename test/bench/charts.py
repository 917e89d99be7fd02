# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Curves over sizes and a heat map of ratios, as lists of SVG elements."""
import html
import math

import bars

PEERS = {"erdma": "#1f6feb", "Open MPI erdma": "#1f6feb", "shm": "#9a6700", "psm3": "#8250df", "UCX posix": "#bf3989",
         "UCX posix+cma": "#cf5c00", "Open MPI vader": "#116329", "Open MPI UCX": "#bf3989"}
OTHER = "#57606a"
WIDTH, HEIGHT, LEFT, RIGHT = 380, 200, 45, 15  # sizes of a chart, and of the space beside its curves
MAP, CELL, ROW, NAMES = 760, 44, 18, 215  # sizes of a heat map, and of the space for its names
WORST = 2.0  # a ratio from here on has the deepest colour


def text(x, y, words, **attributes):
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x}" y="{y}"{more}>{html.escape(words)}</text>'


def decades(least, most):
    """Powers of ten around the values."""
    return list(range(math.floor(math.log10(least)), math.ceil(math.log10(most) + 1e-9) + 1))


def chart(top, title, unit, series, left=0):
    """(elements, height). series: {name: [(size, value)]}, both axes logarithmic. The names stand in the corner where
    the curves have no values: times grow to the right, rates soon are at their highest."""
    points = [point for values in series.values() for point in values if point[1] > 0]
    if not points:
        return [], 0
    columns = sorted({size for size, _ in points})
    low, *_, high = decades(min(v for _, v in points), max(v for _, v in points) * 1.001)
    begin, right, bottom = left + LEFT, left + WIDTH - RIGHT, top + 30 + HEIGHT
    spread = max(1e-9, math.log2(columns[-1]) - math.log2(columns[0]))
    across = lambda size: round(begin + (right - begin) * (math.log2(size) - math.log2(columns[0])) / spread, 1)
    up = lambda value: round(bottom - HEIGHT * (math.log10(value) - low) / (high - low), 1)
    out = [text(begin, top + 16, f"{title}, {unit}", font_weight="bold")]
    for power in range(low, high + 1):
        y = up(10.0**power)
        out.append(f'<line x1="{begin}" y1="{y}" x2="{right}" y2="{y}" stroke="#d0d7de"/>')
        out.append(text(begin - 6, y + 4, f"{10.0**power:g}", text_anchor="end", font_size=10))
    for size in columns[::max(1, len(columns) // 6)]:
        out.append(text(across(size), bottom + 14, bars.size_name(size), text_anchor="middle", font_size=10))
    at, down = (begin + 8, top + 40) if unit == "us" else (right - 130, bottom - 16 * len(series))
    for number, (name, values) in enumerate(series.items()):
        colour, y = PEERS.get(name, OTHER), down + 16 * number
        path = " ".join(f"{across(size)},{up(value)}" for size, value in sorted(values) if value > 0)
        width = 2.5 if name.endswith("erdma") else 1.2
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        out.append(f'<line x1="{at}" y1="{y}" x2="{at + 18}" y2="{y}" stroke="{colour}" '
                   f'stroke-width="{width}"/>')
        out.append(text(at + 23, y + 4, name, font_size=11))
    return out, HEIGHT + 60


def colour(ratio):
    """White at 1; green where erdma is better, red where it is worse."""
    depth = min(1.0, abs(math.log(ratio)) / math.log(WORST))
    strong = (26, 127, 55) if ratio < 1 else (207, 34, 46)
    mixed = (round(255 + (part - 255) * depth * 0.8) for part in strong)
    return "#" + "".join(f"{part:02x}" for part in mixed)


def order(column):
    """Columns are sizes; others follow."""
    number, _, unit = column.partition(" ")
    factor = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20}.get(unit)
    return (0, int(number) * factor, column) if factor and number.isdigit() else (1, 0, column)


def is_shown(column):
    """The map has room for 8 B, powers of four, and columns that are no sizes."""
    kind, size, _ = order(column)
    return kind == 1 or size == 8 or (size.bit_length() % 2 == 1 and size & (size - 1) == 0)


def short(column):
    return column.replace(" KiB", "K").replace(" MiB", "M").replace(" B", "")


def heat(top, title, cells):
    """(elements, height). cells: {(row, column): ratio}."""
    cells = {at: ratio for at, ratio in cells.items() if ratio > 0 and is_shown(at[1])}
    if not cells:
        return [], 0
    rows = list(dict.fromkeys(name for name, _ in cells))
    columns = sorted({column for _, column in cells}, key=order)
    cell = min(CELL, (MAP - NAMES - 10) / len(columns))
    out, y = [text(NAMES, top + 16, title, font_weight="bold")], top + 24
    for number, column in enumerate(columns):
        out.append(text(round(NAMES + cell * (number + 0.5), 1), y + 12, short(column), text_anchor="middle",
                        font_size=9))
    for name in rows:
        y += ROW
        out.append(text(NAMES - 6, y + 13, name, text_anchor="end", font_size=10))
        for number, column in enumerate(columns):
            ratio = cells.get((name, column))
            if ratio is None:
                continue
            x = round(NAMES + cell * number, 1)
            out.append(f'<rect x="{x}" y="{y}" width="{round(cell - 1, 1)}" height="{ROW - 1}" '
                       f'fill="{colour(ratio)}"/>')
            out.append(text(round(x + cell / 2, 1), y + 13, f"{ratio:.2f}", text_anchor="middle", font_size=9))
    return out, y + ROW + 16 - top
