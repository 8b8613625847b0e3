"""A bar chart of ratios as SVG, on a logarithmic scale: how many times better than the peer."""

import math
from html import escape

BAR, GAP, LEFT, WIDTH, TOP = 18, 8, 330, 860, 54
INK, SOFT, FIRE = "#333333", "#dddddd", "#d9622b"


def draw(rows: list[tuple[str, float]]) -> str:
    room = WIDTH - LEFT - 80
    decades = max(1, math.ceil(math.log10(max(ratio for _, ratio in rows))))
    height = TOP + len(rows) * (BAR + GAP) + 30

    def x(ratio: float) -> float:
        return LEFT + room * max(0.0, math.log10(max(ratio, 1.0))) / decades

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        '<text x="16" y="28" font-size="17" font-weight="600">How many times better than ipykernel, same run</text>',
    ]
    for decade in range(decades + 1):
        at = x(10**decade)
        parts.append(f'<line x1="{at:.1f}" y1="{TOP - 8}" x2="{at:.1f}" y2="{height - 28}" stroke="{SOFT}"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - 10}" text-anchor="middle">{10**decade:,}x</text>')
    for index, (name, ratio) in enumerate(rows):
        y = TOP + index * (BAR + GAP)
        end = x(ratio)
        parts.append(f'<text x="{LEFT - 10}" y="{y + 14}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{max(1.0, end - LEFT):.1f}" height="{BAR}" fill="{FIRE}"/>')
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 14}">{ratio:,.{0 if ratio >= 100 else 1}f}x</text>')
    return "\n".join([*parts, "</svg>", ""])
