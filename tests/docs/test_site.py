"""The built site: sizes and links of its pages, and what a browser shows of them on a phone and on a desk.

``python -m sphinx docs docs/_build`` comes first. The last test needs Chromium or Chrome on the path.
"""

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

SITE = Path(__file__).parents[2] / "docs" / "_build"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
PAGES = sorted(page.relative_to(SITE).as_posix() for page in SITE.rglob("*.html") if "_modules" not in page.parts)

PARTS = re.findall(r"^:caption: (.+)$", (SITE.parent / "index.md").read_text(), re.MULTILINE)

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not PAGES, reason="there is no docs/_build: `python -m sphinx docs docs/_build` builds it"),
]

# Opens pages in frames of a width, a few at once, and sends what leaves the column of the text and cannot be scrolled to.
HARNESS = """<!doctype html><body><script>
const AT_ONCE = 4, {pages, width} = CASES, found = {};
const apart = "mjx-assistive-mml, .headerlink, .viewcode-link, .visually-hidden";
const shown = e => e.getClientRects().length && !e.closest(apart);
function faults(d, article) {
  const root = d.documentElement, said = [];
  if (root.scrollWidth > root.clientWidth + 1) said.push(`the page is ${root.scrollWidth} wide`);
  const style = d.defaultView.getComputedStyle(article), box = article.getBoundingClientRect();
  // The theme sets titles and tables half a letter beyond the text.
  const right = Math.min(box.right - parseFloat(style.paddingRight) + 9, root.clientWidth);
  for (const e of article.querySelectorAll("*")) {
    if (!shown(e) || e.getBoundingClientRect().right <= right) continue;
    let scrolls = false;
    for (let a = e.parentElement; a && a !== article.parentElement; a = a.parentElement)
      scrolls ||= ["auto", "scroll"].includes(d.defaultView.getComputedStyle(a).overflowX);
    if (!scrolls && !said.some(s => s.within?.contains(e))) {
      const words = (e.textContent || e.getAttribute("src") || "").trim().slice(0, 40).replace(/\\s+/g, " ");
      const beyond = Math.round(e.getBoundingClientRect().right - right);
      said.push(Object.assign(new String(`<${e.tagName.toLowerCase()}> ${words}: ${beyond} beyond`), {within: e}));
    }
  }
  return said.map(String);
}
async function open(page) {
  const frame = document.body.appendChild(document.createElement("iframe"));
  frame.style = `width: ${width}px; height: 900px; border: 0`;
  await new Promise(done => { frame.onload = done; frame.src = "/" + page; });
  const w = frame.contentWindow, d = frame.contentDocument;
  for (const image of d.images) image.loading = "eager";
  if (d.querySelector("script[src*=mathjax]")) while (!w.MathJax?.startup?.promise) await new Promise(f => setTimeout(f, 20));
  await w.MathJax?.startup?.promise;
  await d.fonts.ready;
  await Promise.all([...d.images].map(i => i.complete || new Promise(f => i.onload = i.onerror = f)));
  const article = d.querySelector("article");
  found[page] = {seen: article.querySelectorAll("*").length, faults: faults(d, article)};
  frame.remove();
}
async function run() {
  const rest = [...pages];
  await Promise.all(Array.from({length: AT_ONCE}, async () => { while (rest.length) await open(rest.shift()); }));
  await fetch("/found", {method: "POST", body: JSON.stringify(found)});
}
run().catch(error => fetch("/found", {method: "POST", body: JSON.stringify({error: String(error.stack)})}));
</script>"""


def opened(pages, width, folder):
    """What a browser finds on each page in a window of a width."""
    arrived, found = threading.Event(), {}
    harness = HARNESS.replace("CASES", json.dumps({"pages": pages, "width": width})).encode()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/":
                self.send_response(200)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write(harness)
            else:
                super().do_GET()

        def do_POST(self):
            found.update(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()
            arrived.set()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=os.fspath(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", f"--user-data-dir={folder}"]
    address = f"http://127.0.0.1:{server.server_port}/"
    with subprocess.Popen([BROWSER, *arguments, "--remote-debugging-port=0", address], stderr=subprocess.DEVNULL) as browser:
        try:
            assert arrived.wait(400), "the browser did not answer within 400 seconds"
        finally:
            browser.terminate()
            server.shutdown()
            server.server_close()
    assert "error" not in found, found["error"]
    return found


def test_the_page_with_the_most_names_is_short():
    """The page of the modules has less than 200 kB."""
    assert (SITE / "families" / "modules.html").stat().st_size < 200_000


@pytest.mark.parametrize("page", PAGES)
def test_every_page_links_the_repository_and_has_a_grouped_sidebar(page):
    """The sidebar has a heading for each part of the contents, and the address of the source."""
    html = (SITE / page).read_text()
    sidebar = html[html.index('class="sidebar-tree"') : html.index("</aside>")]
    assert re.findall(r'class="caption-text">([^<]+)', sidebar) == PARTS
    assert 'href="https://github.com/fullgrad/fullgrad"' in sidebar


@pytest.mark.skipif(BROWSER is None, reason="no browser: none of chromium, google-chrome and chrome is on the path")
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_leaves_its_column(width, tmp_path):
    """On every page what is wider than the column of the text scrolls, and the page itself is as wide as the window."""
    found = opened(PAGES, width, tmp_path)
    assert found.keys() == {*PAGES}
    assert all(page["seen"] > 1 for page in found.values())
    assert {name: page["faults"][:5] for name, page in found.items() if page["faults"]} == {}


@pytest.mark.skipif(BROWSER is None, reason="no browser: none of chromium, google-chrome and chrome is on the path")
def test_a_formula_that_leaves_its_column_is_found(tmp_path, monkeypatch):
    """The test above fails for a wide formula, a wide table and a wide word."""
    (tmp_path / "site").mkdir()
    for name, part in {
        "math": "<div style='width: 2000px'>x</div>",
        "hidden": "<div style='overflow: hidden'><table><tr><td style='min-width: 2000px'>x</td></tr></table></div>",
        "word": "x" * 2000,
        "scrolls": "<div style='overflow: auto'><p style='width: 2000px'>x</p></div>",
    }.items():
        (tmp_path / "site" / f"{name}.html").write_text(f"<!doctype html><article><p>begin</p><p>{part}</p></article>")
    monkeypatch.setitem(globals(), "SITE", tmp_path / "site")
    found = opened(["math.html", "hidden.html", "word.html", "scrolls.html"], 390, tmp_path)
    assert {name for name, page in found.items() if page["faults"]} == {"math.html", "hidden.html", "word.html"}
