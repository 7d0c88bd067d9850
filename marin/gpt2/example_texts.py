"""Short texts of several kinds, written for this project, on which tokenizers are compared."""

NEWS = """The harbour bridge reopened on Tuesday after eleven weeks of repairs. The city council said that 14,200 vehicles
crossed it in the first six hours, fewer than the 19,000 it had planned for, and that a second lane for bicycles would follow
in spring. "We were three days early and 2.4 million under budget," said the engineer in charge, Anna Lindqvist. Residents of
the northern districts, who had taken a detour of 17 kilometres since September, were less patient: "It should never have
needed so long."
"""

KOREAN = """강을 따라 걷던 아이는 오래된 다리 아래에서 작은 배를 발견했다. 배 안에는 낡은 지도와 편지 한 장이 있었고, 편지에는 "이 길을 따라
산 너머 마을까지 오면 너를 기다리겠다"라고 적혀 있었다. 아이는 잠시 생각하다가 지도를 접어 주머니에 넣고 집으로 돌아갔다. 다음 날 아침, 비가
그치자 아이는 동생과 함께 그 길을 떠났다.
"""

CODE = '''def merge(left: list[int], right: list[int]) -> list[int]:
    """Two sorted lists as one."""
    merged, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


class Queue:
    def __init__(self, capacity: int = 16):
        self._items = [None] * capacity
        self._head = self._size = 0

    def __len__(self) -> int:
        return self._size
'''

MATH = r"""\begin{theorem} Let $f : [a, b] \to \mathbb{R}$ be continuous and let $F(x) = \int_a^x f(t)\,dt$. Then $F$ is
differentiable on $(a, b)$ and $F'(x) = f(x)$. \end{theorem} \begin{proof} Fix $x$ and $\varepsilon > 0$. By continuity there
is $\delta > 0$ with $|f(t) - f(x)| < \varepsilon$ whenever $|t - x| < \delta$. For $0 < |h| < \delta$ we find
\[ \left| \frac{F(x + h) - F(x)}{h} - f(x) \right| \le \frac{1}{|h|} \left| \int_x^{x + h} |f(t) - f(x)|\,dt \right|
\le \varepsilon. \] \end{proof}
"""

SCIENCE = """Photosynthesis stores light as chemical energy. In the thylakoid membrane, photosystem II takes electrons from
water and releases oxygen; the electrons pass through the cytochrome b6f complex, which pumps protons into the lumen, and
reach photosystem I, where a second photon lifts them to NADP+. ATP synthase lets the protons flow back and makes ATP from
ADP and phosphate. In the stroma, the enzyme RuBisCO then binds CO2 to ribulose-1,5-bisphosphate; at 25 degrees it does so
about three times a second, which is slow for an enzyme.
"""

EXAMPLE_TEXTS = {"news": NEWS, "korean": KOREAN, "code": CODE, "math": MATH, "science": SCIENCE}
