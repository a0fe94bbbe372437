"""Pictures of the playground for the docs: python -m tests.serve.page_pictures URL FOLDER.

The server at URL serves trained models, the first one a DA-DLM.
"""

import sys
from pathlib import Path
from urllib.parse import urlencode

from tests.serve.page_browser import chromium, visit

PROMPT = "green rivers repair mountains "
GAPS = "green rivers [[2]] gentle [[2]] shadows bright clocks [[2]]"
RUN = {"seed": 3, "sampler": "random", "steps": 2, "temperature": 1, "top_p": 0.9, "path": "sample"}
WRITE = {"mode": "write", "prompt": PROMPT, "max_tokens": 20, "infill_k": 1, "infill_r": 0.5}
WIDE, NARROW = {"width": 1280, "height": 720}, {"width": 400, "height": 800}
PICTURES = {
    "write": ({**WRITE, "step": 2}, {"viewport": WIDE}),
    "dark": ({"mode": "infill", "prompt": GAPS, "step": 1}, {"viewport": WIDE, "color_scheme": "dark"}),
    "race": ({**WRITE, "mode": "race"}, {"viewport": WIDE}),
    "narrow": ({**WRITE, "step": 2}, {"viewport": NARROW}),
}


def draw(url: str, folder: Path) -> None:
    with chromium() as browser:
        for name, (run, look) in PICTURES.items():
            hash_ = "#" + urlencode(RUN | run)
            with visit(browser, url, hash_, device_scale_factor=1.25, **look) as page:
                page.wait_for_selector("#exports:not([hidden])")
                page.wait_for_timeout(300)  # until the last step is drawn
                page.screenshot(path=folder / f"playground-{name}.png", full_page=True)


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]))
