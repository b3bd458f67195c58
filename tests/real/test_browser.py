"""The report in a real browser, without a network: Debian's chromium and its driver (`make browser` installs them)."""

import os
import shutil
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from made_runs import EVIL, VERDICT, history, line, rows, save, save_page
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

from fedsps.report.collect import collect
from fedsps.report.page import page

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def browser():
    places = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    missing = [name for name, place in places.items() if place is None]
    assert not missing, f"no {' and no '.join(missing)} on the path: run make browser, or install them"
    options = webdriver.ChromeOptions()
    options.binary_location = places["chromium"]
    for word in ("--headless=new", "--disable-dev-shm-usage", "--window-size=1200,900"):
        options.add_argument(word)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # chromium has none for root
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(places["chromedriver"]))
    driver.set_page_load_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a reproduced page, two lines of three seeds and three verdicts, and of runs of two tasks."""
    place = tmp_path_factory.mktemp("report")
    falling = np.linspace(1.0, 0.1, 20)
    table = pd.concat([rows("FedSPS", 3, train_loss=falling), rows("FedAvg tuned", 3, train_loss=2 * falling)])
    verdicts = [
        VERDICT | {"id": name, "outcome": outcome, "effect": [effect]}
        for name, outcome, effect in (("C2", "holds", 9.0), ("C10", "undecided", 10.0), ("C1", "holds", -1.5))
    ]
    out = save_page(place / "out", table=table, verdicts=verdicts, lines=[line(), line("FedAvg tuned", "fedavg")])
    for seed in range(2):
        save(place / "runs", "fedsps", seed=seed)
        save(place / "runs", "fedavg", seed=seed, table=history(9, train_loss=[*range(1, 9), np.inf]), diverged_at=9)
    save(place / "runs", "fedsps", local_steps=9)
    return write(place, out, place / "runs")


@pytest.fixture
def opened(browser, report):
    """The report, loaded anew; after the test nothing may have been complained about or asked of a network."""
    browser.get_log("performance")
    load(browser, report)
    yield browser
    assert browser.get_log("browser") == []
    urls = requested(browser)
    assert urls
    assert all(url.startswith(("file:", "data:", "blob:")) for url in urls)


def write(folder, *places):
    path = folder / "report.html"
    path.write_text(page(collect(places)), encoding="utf-8")
    return path


def load(browser, path):
    browser.get(path.as_uri())
    WebDriverWait(browser, 60).until(lambda _: traces(browser) is not None)


def requested(browser):
    messages = [entry["message"] for entry in browser.get_log("performance")]
    return [text.partition('"url":"')[2].partition('"')[0] for text in messages if "Network.requestWillBeSent" in text]


def figure(browser, number=1):
    return browser.find_element(By.ID, f"figure-{number}")


def select(browser, kind, number=1):
    return figure(browser, number).find_element(By.CSS_SELECTOR, f"select.{kind}")


def traces(browser, number=1):
    """What a figure shows, by kind; None before it is drawn."""
    return browser.execute_script(
        f"return document.querySelector('#figure-{number} .js-plotly-plot')?.data?.map((one) => one.meta) ?? null"
    )


def axis(browser, number=1):
    return browser.execute_script(f"return document.querySelector('#figure-{number} .plot')._fullLayout.yaxis.type")


def drawn(browser, number=1):
    return len(browser.find_elements(By.CSS_SELECTOR, f"#figure-{number} .scatterlayer .trace"))


def column(browser, table, place):
    cells = browser.find_elements(By.CSS_SELECTOR, f"#{table} tbody tr:first-child td:nth-child({place})")
    return [cell.text for cell in cells if cell.is_displayed()]


def test_it_loads(opened):
    assert opened.title == "fedsps report"
    assert sorted(traces(opened)) == ["band", "band", "mean", "mean"]
    assert opened.find_elements(By.CSS_SELECTOR, "#figure-1 .modebar-btn"), "the plot has its own buttons"
    titles = [one.get_attribute("data-title") for one in opened.find_elements(By.CSS_SELECTOR, ".modebar-btn")]
    assert not [title for title in titles if "hare" in title or "loud" in title], "nothing uploads the numbers"


def test_a_box_hides_a_curve(opened):
    before = drawn(opened)
    boxes = figure(opened).find_elements(By.CSS_SELECTOR, ".legend input")
    boxes[0].click()
    assert traces(opened) == ["band", "mean"]
    assert drawn(opened) == before - 2, "the band and the line are gone"
    boxes[0].send_keys(Keys.SPACE)
    assert drawn(opened) == before


def test_the_axis_switches(opened):
    assert axis(opened) == "log"
    Select(select(opened, "scale")).select_by_visible_text("linear")
    assert axis(opened) == "linear"
    Select(select(opened, "scale")).select_by_visible_text("log")
    assert axis(opened) == "log"


def test_another_column(opened):
    Select(select(opened, "column")).select_by_visible_text("training loss")
    means = opened.execute_script(
        "return document.querySelector('#figure-1 .plot').data.filter((one) => one.meta === 'mean').map((one) => one.y[0])"
    )
    assert means == [1.0, 2.0]
    assert axis(opened) == "log"
    Select(select(opened, "column")).select_by_visible_text("test accuracy")
    assert axis(opened) == "linear", "an accuracy is shown on a linear axis"


def test_labels_of_a_log_axis_do_not_overlap(opened):
    Select(select(opened, "column")).select_by_visible_text("training loss")  # from 0.1 to 2
    boxes = [one.rect for one in figure(opened).find_elements(By.CSS_SELECTOR, ".ytick text")]
    boxes.sort(key=lambda box: box["y"])
    assert len(boxes) >= 3
    assert all(upper["y"] + upper["height"] <= lower["y"] for upper, lower in pairwise(boxes))


def test_single_seeds(opened):
    box = figure(opened).find_element(By.CSS_SELECTOR, ".single")
    box.click()
    assert sorted(traces(opened)) == ["mean"] * 2 + ["seed"] * 6
    assert drawn(opened) == 8
    box.click()
    assert sorted(traces(opened)) == ["band", "band", "mean", "mean"]


def test_hovering_shows_values(opened):
    Select(select(opened, "column")).select_by_visible_text("training loss")
    place = figure(opened).find_element(By.CSS_SELECTOR, ".nsewdrag")
    ActionChains(opened).move_to_element(place).perform()
    WebDriverWait(opened, 10).until(
        lambda _: opened.find_elements(By.CSS_SELECTOR, "#figure-1 .hoverlayer .legendtext")
    )
    shown = figure(opened).find_element(By.CSS_SELECTOR, ".hoverlayer").text
    assert "FedSPS : 0." in shown
    assert "FedAvg tuned : 1." in shown


def test_another_axis_across_and_its_name(opened):
    opened.execute_script("document.getElementById('figure-2').scrollIntoView()")
    WebDriverWait(opened, 60).until(lambda _: traces(opened, 2) is not None)
    Select(select(opened, "across", 2)).select_by_visible_text("gradient evaluations")
    last, across, up = opened.execute_script(
        "const plot = document.querySelector('#figure-2 .plot'), axes = plot._fullLayout;"
        "return [plot.data.find((one) => one.meta === 'mean').x.at(-1), axes.xaxis.title.text, axes.yaxis.title.text]"
    )
    assert (last, across, up) == (10.0, "gradient evaluations", "training loss"), "20 rounds of 0.5"


def test_the_numbers_are_downloaded(opened, tmp_path):
    opened.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    Select(select(opened, "column")).select_by_visible_text("training loss")
    figure(opened).find_element(By.CSS_SELECTOR, ".csv").click()
    file = tmp_path / "figure-1-train_loss.csv"
    WebDriverWait(opened, 20).until(lambda _: file.exists())
    table = pd.read_csv(file)
    assert list(table) == ["algorithm", "seed", "round", "train_loss"]
    assert len(table) == 2 * 3 * 20
    assert table[table["algorithm"] == "FedAvg tuned"]["train_loss"].iloc[0] == 2.0


def test_a_search_is_points(browser, tmp_path):
    for stepsize in (0.01, 0.1, 1):
        save(tmp_path / "runs", f"fedavg:client_stepsize={stepsize}", seed=1000)
    load(browser, write(tmp_path, tmp_path / "runs"))
    assert traces(browser) == ["trial"]
    assert [one.text for one in figure(browser).find_elements(By.CSS_SELECTOR, ".xtick text")] == ["0.01", "0.1", "1"]
    assert browser.get_log("browser") == []


def test_a_dark_page_is_dark_and_black_lines_are_not(browser, tmp_path):
    save(tmp_path / "runs", "fedams")  # whose curves are black
    path = write(tmp_path, tmp_path / "runs")

    def colours(mode):
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": mode}]}
        )
        load(browser, path)
        return browser.execute_script(
            "const plot = document.querySelector('.plot'), colour = getComputedStyle(document.body);"
            "return [colour.backgroundColor, colour.color, plot.data[0].line.color, plot._fullLayout.paper_bgcolor]"
        )

    try:
        assert colours("light") == ["rgb(255, 255, 255)", "rgb(27, 27, 27)", "#000000", "#ffffff"]
        assert colours("dark") == ["rgb(22, 24, 27)", "rgb(230, 230, 230)", "#9e9e9e", "#16181b"]
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_diverged_runs_have_a_mark(opened):
    opened.execute_script("document.getElementById('figure-2').scrollIntoView()")
    WebDriverWait(opened, 60).until(lambda _: traces(opened, 2) is not None)
    assert "diverged" in traces(opened, 2)
    assert "diverged: seed 0 in round 9, seed 1 in round 9" in figure(opened, 2).text


def test_the_tables_sort(opened):
    headings = opened.find_elements(By.CSS_SELECTOR, "#verdicts th")
    claim, numbers = headings[0], headings[-1]
    assert column(opened, "verdicts", 1) == ["C2", "C10", "C1"]
    claim.find_element(By.TAG_NAME, "button").click()
    assert column(opened, "verdicts", 1) == ["C1", "C2", "C10"]
    assert claim.get_attribute("aria-sort") == "ascending"
    claim.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert column(opened, "verdicts", 1) == ["C10", "C2", "C1"]
    assert claim.get_attribute("aria-sort") == "descending"
    numbers.find_element(By.TAG_NAME, "button").click()
    assert column(opened, "verdicts", 1) == ["C1", "C2", "C10"], "by the number itself"
    assert claim.get_attribute("aria-sort") is None
    rounds = opened.find_elements(By.CSS_SELECTOR, "#runs th")[3].find_element(By.TAG_NAME, "button")
    rounds.click()
    assert column(opened, "runs", 4) == ["9", "9", "20", "20", "20"]
    assert len(opened.find_elements(By.CSS_SELECTOR, "#runs tbody tr:nth-child(2) details")) == 5, "details stay"


def test_verdicts_are_filtered(opened):
    outcome = Select(opened.find_element(By.ID, "outcome"))
    assert [option.text for option in outcome.options] == ["all (3)", "holds (2)", "undecided (1)"]
    outcome.select_by_index(1)
    assert column(opened, "verdicts", 1) == ["C2", "C1"]
    outcome.select_by_index(0)
    assert len(column(opened, "verdicts", 1)) == 3


def test_settings_unfold(opened):
    details = opened.find_element(By.TAG_NAME, "details")
    assert "provenance" not in details.text
    details.find_element(By.TAG_NAME, "summary").click()
    assert "provenance" in details.text
    assert "local_steps" in details.text


def test_a_phone_need_not_scroll_sideways(opened):
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    )
    script = "return [document.documentElement.scrollWidth, document.querySelector('#figure-1 .main-svg').clientWidth]"
    try:
        WebDriverWait(opened, 10).until(lambda _: max(opened.execute_script(script)) <= 360)  # plots are drawn anew
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_labels_are_texts(browser, tmp_path):
    panels = [{"name": EVIL, "heading": EVIL, "column": "train_loss", "lines": [line(EVIL)]}]
    out = save_page(tmp_path / "out", table=rows(EVIL, panel=EVIL), panels=panels)
    load(browser, write(tmp_path, out))
    assert browser.find_element(By.TAG_NAME, "figcaption").text == EVIL
    assert figure(browser).find_element(By.CSS_SELECTOR, ".legend").text == EVIL
    ActionChains(browser).move_to_element(figure(browser).find_element(By.CSS_SELECTOR, ".nsewdrag")).perform()
    WebDriverWait(browser, 10).until(lambda _: browser.find_elements(By.CSS_SELECTOR, ".hoverlayer .legendtext"))
    assert f"{EVIL} : 0.5" in browser.find_element(By.CSS_SELECTOR, ".hoverlayer").text
    assert not browser.find_elements(By.TAG_NAME, "img")
    assert browser.get_log("browser") == []
