"""Pictures of the playground for the docs: python -m tools.page_pictures URL FOLDER.

The server at URL is `dadlm serve` with the models that ship.
"""

import sys
from pathlib import Path
from urllib.parse import urlencode

from tests.serve.page_browser import chromium, visit

PROMPT = "The history of"
GAPS = "The history of the[[4]] began in the[[2]] century, when the[[6]] of the city."
RUN = {"seed": 3, "sampler": "random", "steps": 8, "temperature": 1, "top_p": 0.9, "path": "sample"}
WRITE = {
    "mode": "write",
    "model": "dadlm",
    "prompt": PROMPT,
    "max_tokens": 45,
    "infill_k": 1,
    "infill_r": 0.5,
}
WIDE, NARROW = {"width": 1280, "height": 720}, {"width": 400, "height": 800}
PICTURES = {
    "write": ({**WRITE, "step": 10}, {"viewport": WIDE}),
    "dark": (
        {"mode": "infill", "model": "dadlm", "prompt": GAPS, "seed": 5, "step": 3},
        {"viewport": WIDE, "color_scheme": "dark"},
    ),
    "race": ({**WRITE, "mode": "race"}, {"viewport": WIDE}),
    "narrow": ({**WRITE, "step": 10}, {"viewport": NARROW}),
}


def draw(url: str, folder: Path) -> None:
    with chromium() as browser:
        for name, (run, look) in PICTURES.items():
            hash_ = "#" + urlencode(RUN | run)
            with visit(browser, url, hash_, device_scale_factor=1.25, **look) as page:
                page.wait_for_selector("#exports:not([hidden])", timeout=120_000)
                page.wait_for_timeout(300)  # until the last step is drawn
                page.screenshot(path=folder / f"playground-{name}.png", full_page=True)


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]))
