"""The page of a session in a real browser: headless Chromium, driven by its own chromedriver."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from reports.page import write_page
from testbed.model.events import Fired
from tests.record_builder import inserted, without, write
from tests.recorded import deadlock, in_session, modelled

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed (requirements-browser.txt)"
)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    BROWSER is None or DRIVER is None,
    reason="no chromium with chromedriver on the PATH (Debian: chromium, chromium-driver)",
)

WIDTH, HEIGHT = 1280, 900
HOSTILE = "<img src=x onerror=alert(1)>"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)
CASES = (
    "sound-batched-pp2tp2",
    "late-batched-pp2tp2",
    "wide-batched-pp8tp8",
    "bug-world-in-skew-bug:world-in-skew-pp2tp2",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A session of four cases: sound, a violation, a wide one, a real deadlock."""
    folder = tmp_path_factory.mktemp("out") / "20990101-000000"
    late = without(
        modelled(name="late", transfers=[write("w0")]),
        2,
        lambda event: type(event).__name__ == "Complete",
    )
    late = inserted(late, 2, 0, Fired(0, 0, 0, "odd", HOSTILE))
    wide = modelled("pp8tp8", [write("w0")], name="wide", steps=4)
    sound = modelled(name="sound", transfers=[write("w0")])
    rows = in_session(folder, [sound, late, wide, deadlock().record])
    return write_page(rows, 4, folder).as_uri()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running browser with nothing in it."""
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False},
    )
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any, page: str) -> Iterator[Any]:
    """The browser on the page; whatever the test did, the console has no error after it."""
    chromium.get("about:blank")
    chromium.get(page)
    yield chromium
    assert [line for line in chromium.get_log("browser") if line["level"] == "SEVERE"] == []


def shown(browser: Any) -> list[str]:
    """Names of the cases in the list that can be seen."""
    found: list[str] = browser.execute_script(
        "return [...document.querySelectorAll('#cases tbody tr')]"
        ".filter(row => row.offsetHeight > 0).map(row => row.cells[0].textContent.trim())"
    )
    return found


def until(browser: Any, script: str) -> Any:
    """Wait, in the browser, until the script gives something true, and return that."""
    return browser.execute_async_script(
        "const done = arguments[0]; const look = () => {"
        f"const found = (() => {{ {script} }})();"
        "if (found) done(found); else requestAnimationFrame(look); }; look();"
    )


def opened(browser: Any, case: str) -> None:
    """Open a case by the link in the list, and wait for its timeline."""
    browser.execute_script(
        "[...document.querySelectorAll('#cases a')].find(a => "
        "decodeURIComponent(a.hash) === '#case=' + arguments[0]).click()",
        case,
    )
    until(
        browser,
        "const title = document.getElementById('case-title');"
        f"return title && title.textContent === '{case}'",
    )


def typed(browser: Any, *keys: str) -> None:
    """Keys to what has the focus."""
    for key in keys:
        browser.switch_to.active_element.send_keys(key)


def fill(browser: Any, element: str, value: str) -> None:
    browser.execute_script(
        "const one = document.getElementById(arguments[0]); one.value = arguments[1];"
        "one.dispatchEvent(new Event('input', {bubbles: true}))",
        element,
        value,
    )


def overflow(browser: Any) -> int:
    """Pixels by which the page is wider than the window."""
    found: int = browser.execute_script(
        "return document.documentElement.scrollWidth - window.innerWidth"
    )
    return found


def test_the_page_loads_with_all_cases_and_fetches_nothing(browser: Any) -> None:
    assert shown(browser) == ["sound", "late", "wide", "bug-world-in-skew"]
    assert (
        browser.execute_script(
            "return performance.getEntriesByType('resource').map(one => one.name)"
            ".filter(name => !name.startsWith('data:'))"
        )
        == []
    )


def test_filters_show_the_cases_that_pass_all_of_them(browser: Any) -> None:
    fill(browser, "f-text", "WORLD #0")
    assert shown(browser) == ["bug-world-in-skew"]
    fill(browser, "f-text", "")
    fill(browser, "f-verdict", "ok")
    assert shown(browser) == ["sound", "wide"]
    fill(browser, "f-topology", "pp8tp8")
    assert shown(browser) == ["wide"]
    assert browser.execute_script("return document.getElementById('shown').value") == (
        "1 of 4 cases"
    )
    fill(browser, "f-text", "nothing like it")
    assert shown(browser) == []
    browser.execute_script("document.querySelector('#filters [type=reset]').click()")
    assert until(browser, "return document.getElementById('shown').value === '4 of 4 cases'")
    browser.execute_script("document.getElementById('f-unexpected').click()")
    assert shown(browser) == ["late"]


def test_columns_sort_both_ways_and_say_so(browser: Any) -> None:
    sort = "document.querySelectorAll('.sort')[0].click()"
    browser.execute_script(sort)
    assert shown(browser) == ["bug-world-in-skew", "late", "sound", "wide"]
    browser.execute_script(sort)
    assert shown(browser) == ["wide", "sound", "late", "bug-world-in-skew"]
    head = "return document.querySelector('#cases th').getAttribute('aria-sort')"
    assert browser.execute_script(head) == "descending"


def test_the_first_divergence_can_be_seen(browser: Any) -> None:
    opened(browser, "late-batched-pp2tp2")
    odd = browser.execute_script(
        "return [...document.querySelectorAll('.timeline rect.cell.minority')]"
        ".map(cell => [cell.dataset.r, cell.getBoundingClientRect().width > 20,"
        " getComputedStyle(cell).stroke])"
    )
    assert [(rank, wide) for rank, wide, _ in odd] == [("2", True)]
    even = browser.execute_script(
        "return [...document.querySelectorAll('.timeline rect.cell.majority')]"
        ".map(cell => cell.dataset.r)"
    )
    assert even == ["0", "1", "3"]
    assert "first divergence: step 1, write #0" in browser.execute_script(
        "return document.querySelector('.timeline text.diverged').textContent"
    )
    table = browser.execute_script("return document.querySelector('.divergence').innerText")
    assert "minority" in table
    assert "rank 2" in table


def test_a_deadlocks_cycle_is_drawn(browser: Any) -> None:
    opened(browser, "bug-world-in-skew-bug:world-in-skew-pp2tp2")
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.timeline path.cycle')]"
        ".map(path => [path.dataset.r, path.getTotalLength() > 50])"
    )
    assert sorted(map(tuple, drawn)) == [("0", True), ("2", True)]


def test_what_a_run_recorded_is_text_and_never_markup(browser: Any) -> None:
    opened(browser, "late-batched-pp2tp2")
    assert browser.execute_script("return document.querySelectorAll('#case img').length") == 0
    titles = browser.execute_script(
        "return [...document.querySelectorAll('.marks .fault title')].map(t => t.textContent)"
    )
    assert titles == [f"rank 2, step 0: fault 0 (odd): {HOSTILE}"]


def test_the_keyboard_reaches_a_case_and_everything_on_its_timeline(browser: Any) -> None:
    browser.execute_script("document.querySelectorAll('#cases a')[1].focus()")
    typed(browser, "\ue007")  # enter
    until(browser, "const t = document.getElementById('case-title'); return t")
    assert browser.execute_script("return document.activeElement.id") == "case-title"
    browser.execute_script("document.querySelector('.scroll').focus()")
    pointed = "return document.getElementById('pointed').textContent"
    typed(browser, "\ue011")  # home
    assert browser.execute_script(pointed).startswith("rank 2, minority: ")
    typed(browser, "\ue013")  # up
    assert browser.execute_script(pointed).startswith("rank 1, ")
    before = browser.execute_script(pointed)
    typed(browser, "\ue014")  # right
    after = browser.execute_script(pointed)
    assert after != before
    assert after.startswith("rank 1, ")
    typed(browser, "\ue012")  # left
    assert browser.execute_script(pointed) == before
    assert browser.execute_script("return document.querySelectorAll('.chosen').length") == 1


def test_going_back_leads_to_the_case_one_came_from(browser: Any) -> None:
    opened(browser, "wide-batched-pp8tp8")
    browser.execute_script("document.getElementById('back').click()")
    until(browser, "return document.getElementById('case').hidden")
    assert browser.execute_script("return document.activeElement.textContent") == "wide"
    assert len(shown(browser)) == 4


def test_a_screen_reader_is_told_what_the_picture_shows(browser: Any) -> None:
    opened(browser, "late-batched-pp2tp2")
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node["ignored"]
    ]
    (picture,) = [name for role, name in named if role == "image" and name.startswith("Timeline")]
    assert "first divergence: step 1, write #0: rank 2: " in picture
    assert ("heading", "First divergence: step 1, write #0") in named
    assert ("group", "Timeline, use the arrow keys") in named
    nameless = [role for role, name in named if role in ("link", "button", "combobox") and not name]
    assert nameless == []


@pytest.mark.parametrize("case", ["", *CASES])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_overflows_and_text_can_be_read(browser: Any, case: str, scheme: str) -> None:
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    if case:
        opened(browser, case)
    assert overflow(browser) <= 0
    contrasts = browser.execute_script(CONTRAST)
    assert contrasts, "no text was found"
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}


def test_a_case_has_an_address_of_its_own(chromium: Any, page: str) -> None:
    chromium.get("about:blank")
    chromium.get(f"{page}#case={quote('wide-batched-pp8tp8')}")
    until(chromium, "return document.querySelectorAll('.timeline .stage').length === 8")
    lanes = "return document.querySelectorAll('.timeline text.rank').length"
    assert chromium.execute_script(lanes) == 64


def test_the_page_stays_small(page: str) -> None:
    # A thousand cases like the sound one of four ranks would take a few megabytes.
    size = Path(page.removeprefix("file://")).stat().st_size
    assert size < 250_000


# Contrast by the formula of WCAG 2 of each kind of text against the ground it stands on.
CONTRAST = """
const number = (colour) => colour.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = (colour) => {
  const [r, g, b] = number(colour).map((v) => {
    v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (a, b) => {
  const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05);
};
const ground = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const colour = getComputedStyle(at).backgroundColor;
    if (colour && !/rgba\\(.*, 0\\)|transparent/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
};
const found = {};
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const one = walker.currentNode.parentElement;
  if (!walker.currentNode.textContent.trim() || !one.getClientRects().length) continue;
  if (["SCRIPT", "STYLE", "OPTION", "title"].includes(one.tagName)) continue;
  const svg = one.tagName === "text";
  if (svg && one.classList.contains("value")) continue;
  const stage = document.querySelector(".timeline .stage");
  const under = svg ? getComputedStyle(stage).fill : ground(one);
  const style = getComputedStyle(one);
  const name = one.tagName + "." + (one.getAttribute("class") || one.id);
  found[name] = Math.min(found[name] || 99, ratio(svg ? style.fill : style.color, under));
}
return found;
"""
