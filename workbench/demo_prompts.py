"""Six prompts of everyday work: three code edits, two answers from a text, one chat.

Picked so that the default model really repeats the prompt in the edits and in the answers from a
text, as larger models do there with harder tasks. It is small: not all that it answers is right.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A prompt of the demo.

    Attributes:
        name: short and unique.
        workload: "edit", "rag" or "chat".
        text: what the user says.
    """

    name: str
    workload: str
    text: str


_CODE1 = """\
Clean up this Python file where needed and return the complete updated file.

```python
def celsius_to_fahrenheit(degrees):
    return degrees * 9 / 5 + 32


def fahrenheit_to_celsius(degrees):
    return (degrees - 32) * 5 / 9


def mean(values):
    if not values:
        raise ValueError("expected at least one value")
    return sum(values) / len(values)


def warmest_day(readings):
    best_day = None
    best_value = None
    for day, value in readings.items():
        if best_value is None or value > best_value:
            best_day = day
            best_value = value
    return best_day


def summarize(readings):
    values = list(readings.values())
    return {
        "days": len(values),
        "mean": mean(values),
        "warmest": warmest_day(readings),
    }
```"""

_CODE2 = """\
Format the receipt more nicely in this Python file and return the complete updated file.

```python
def parse_item(line):
    name, price, count = line.strip().split(",")
    return name.strip(), float(price), int(count)


def read_basket(path):
    basket = {}
    with open(path) as handle:
        for line in handle:
            if not line.strip():
                continue
            name, price, count = parse_item(line)
            basket[name] = (price, count)
    return basket


def total(basket):
    amount = 0.0
    for name in basket:
        price, count = basket[name]
        amount += price * count
    return round(amount, 2)


def print_receipt(basket):
    for name in sorted(basket):
        price, count = basket[name]
        print(name.ljust(20), count, price * count)
    print("total".ljust(20), total(basket))
```"""

_CODE3 = """\
Check this Python file for mistakes and return the complete corrected file.

```python
import time


class Stopwatch:
    def __init__(self, name):
        self.name = name
        self.started = None
        self.laps = []

    def start(self):
        self.started = time.monotonic()

    def lap(self):
        if self.started is None:
            raise RuntimeError("start the stopwatch first")
        now = time.monotonic()
        self.laps.append(now - self.started)
        self.started = now
        return self.laps[-1]

    def total(self):
        return sum(self.laps)

    def report(self):
        lines = [self.name]
        for number, seconds in enumerate(self.laps, start=1):
            lines.append(f"{number}: {seconds:.3f} s")
        return "\\n".join(lines)
```"""

_RAG1 = """\
Copy the sentences of the rules that answer the question, word for word.

Borrowing. Members may borrow up to five tools at a time for 14 days. A loan can be extended \
once by another 7 days unless somebody else has reserved the tool. Petrol engines and ladders \
longer than four metres are lent only after a short introduction by a volunteer.

Returns. Tools must be returned clean and dry to the workshop on Tuesday or Saturday between \
10 and 13 o'clock. For each day of delay a fee of 50 cents is charged per tool. A tool that is \
not returned after 60 days is counted as lost and must be paid for at its current price.

Damage. Normal wear is covered by the membership fee. If a tool breaks because it was used for \
something it was not made for, the member pays the repair, but at most 80 euros. Damaged tools \
must be reported at once to repairs@example.org with the number on the yellow label and a \
photo of the damage.

Question: When must tools be returned, and how are damaged tools reported?"""

_RAG2 = """\
Answer the question by quoting the relevant sentences from the text.

The Greywater lighthouse was built in 1874 on a reef two kilometres south of the harbour. Its \
tower is 38 metres high and was made of 2,300 granite blocks that were cut on the mainland and \
numbered before they were shipped. Bad weather allowed the masons to work on the reef for only \
70 days in the first summer.

The first lamp burned rapeseed oil and was tended by three keepers who took turns of four \
hours. In 1911 the oil lamp was replaced by a paraffin burner, which made the light visible \
from 29 kilometres. The last keeper, Ida Holm, left the tower in October 1983, when the light \
became automatic.

In 2016 the coast guard replaced the old lens by a lamp of light-emitting diodes that is \
powered by solar panels on the gallery. The old lens weighs 1.8 tonnes and is now shown in the \
harbour museum, where visitors can walk around it.

Question: How was the tower built, who was the last keeper, and where is the old lens now?"""

_CHAT = """\
I have a small balcony that gets sun only in the morning. What could I grow there in my first \
year, and which mistakes should I avoid?"""

DEMO_PROMPTS = (
    DemoPrompt("code1", "edit", _CODE1),
    DemoPrompt("code2", "edit", _CODE2),
    DemoPrompt("code3", "edit", _CODE3),
    DemoPrompt("rag1", "rag", _RAG1),
    DemoPrompt("rag2", "rag", _RAG2),
    DemoPrompt("chat", "chat", _CHAT),
)
DEFAULT_PROMPTS = ("code2", "rag1", "chat")
