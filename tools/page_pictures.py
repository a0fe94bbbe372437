"""Pictures of the playground for the docs: python -m tools.page_pictures URL FOLDER.

The server at URL is `dadlm serve` with the models that ship. Pillow makes the files small.
"""

import sys
from io import BytesIO
from pathlib import Path
from urllib.parse import urlencode

from PIL import Image
from tests.serve.page_browser import chromium, visit

PROMPT = "The history of"
GAPS = "The history of the[[4]] began in the[[2]] century."
RUN = {"prompt": PROMPT, "max_tokens": 45, "seed": 1, "sampler": "random", "steps": 8, "nucleus": "position"}
WRITE = RUN | {"task": "write", "model": "dadlm", "trace": 1, "step": 10}
GAPS_FILLED = WRITE | {"task": "infill", "prompt": GAPS, "sampler": "confidence", "seed": 3, "step": 2}
RACE = RUN | {"task": "race", "in_turn": 1, "lane": ["dadlm diffusion", "bd3lm diffusion", "ar ar"]}
WIDE, NARROW = {"width": 1280, "height": 720}, {"width": 360, "height": 740}
PICTURES = {
    "tour": ({}, {"viewport": WIDE}),  # the example that the page opens with
    "write": (WRITE, {"viewport": WIDE}),
    "dark": (GAPS_FILLED, {"viewport": WIDE, "color_scheme": "dark"}),
    "race": (RACE, {"viewport": WIDE}),
    "narrow": (WRITE, {"viewport": NARROW}),
}


def draw(url: str, folder: Path) -> None:
    with chromium() as browser:
        for name, (run, look) in PICTURES.items():
            hash_ = "#" + urlencode(run, doseq=True) if run else ""
            with visit(browser, url, hash_, device_scale_factor=1.25, **look) as page:
                if run:
                    page.get_by_text("settings are filled in").wait_for()
                    page.locator("#run").click()
                page.wait_for_selector("#exports:not([hidden])", timeout=120_000)
                page.locator("#stage").evaluate("stage => stage.classList.remove('in-view')")
                page.wait_for_timeout(300)  # until the last step is drawn
                picture = Image.open(BytesIO(page.screenshot(full_page=True))).convert("RGB")
                picture.quantize(256).save(folder / f"playground-{name}.png", optimize=True)


if __name__ == "__main__":
    draw(sys.argv[1], Path(sys.argv[2]))
