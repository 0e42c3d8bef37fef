"""`ovq report` on made-up results of every experiment that the claims ask for: the page is well-formed, loads nothing,
has every figure with all its lines, and lists what is missing. Where Chromium is installed, also that it shows them, and
where gnuplot is, that it draws them.

Usage: page.py OVQ ROOT
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

CLAIMS = "experiments/report/claims.json"
VOID = {"meta", "link", "br", "path", "circle", "rect"}


def expect(ok: bool, what: str) -> None:
    if not ok:
        sys.exit(f"FAILED: {what}")


def experiments_of(root: Path) -> dict:
    """By set/group/name: task, options and evaluations, those of the group where it has none of its own."""
    found = {}
    for file in sorted((root / "experiments").glob("*.json")):
        for group in json.loads(file.read_text())["groups"]:
            for own in group["experiments"]:
                options = {**group.get("options", {}), **own.get("options", {})}
                found[f"{file.stem}/{group['name']}/{own['name']}"] = {
                    "options": options,
                    "evaluations": own.get("evaluations", group["evaluations"]),
                }
    return found


# The lengths that the task's scale is tested at, unless the experiment gives its own.
SETTINGS = {"icl": [(256, {"functions": 1}), (256, {"functions": 2}), (512, {"functions": 4}), (1024, {"functions": 8})]}


def evaluations_of(experiment: dict, seed: int) -> list:
    options = experiment["options"]
    has_dictionary = "ovq" in options["model"]
    lines = []
    for request in experiment["evaluations"]:
        if request.get("identifiers"):  # these results have a list of their own
            continue
        settings = [(length, {}) for length in request.get("lengths", [])]
        settings = settings or SETTINGS.get(options["task"], [(64, {})])
        choices = [{"asked_keep": keep, "centroids": 7} for keep in request.get("keep", [])]
        choices += [{"centroids": size} for size in request.get("centroids", [])]
        if not has_dictionary:
            if lines:
                continue
            choices = [{"centroids": 0}]
        choices = choices or [{"centroids": 256}]  # that of training
        for length, task_options in settings:
            for choice in choices:
                slope = len(options["model"]) / 2e5
                accuracy = min(1, max(0, 0.9 - 0.01 * seed + choice["centroids"] / 1e4 - length * slope))
                line = {"length": length, "options": task_options, **choice, "accuracy": accuracy, "loss": 1 - accuracy}
                line |= {"state_bytes": 1000 * length + choice["centroids"], "tokens_per_second": 1e4 + length}
                if request.get("groups"):
                    line["groups"] = [{"group": i, "accuracy": accuracy * i / 30, "loss": 1} for i in range(30)]
                lines.append(line)
    return lines


def write_results(root: Path, results: Path, seeds: list) -> None:
    for identity, experiment in experiments_of(root).items():
        folder, name = (results / identity).parent, identity.split("/")[-1]
        folder.mkdir(parents=True, exist_ok=True)
        for seed in seeds:
            result = {
                "group": folder.name, "name": name, "shows": "", "claims": [], "seed": seed,
                "options": {"task": experiment["options"]["task"], "seed": seed}, "requests": [],
                "commit": "made<up>", "evaluated_by": "made<up>", "machine": {"cpu": 'one & "only"'},
                "training": {"steps": 1, "tokens": 1, "seconds": 1}, "evaluation_seconds": 1, "metric": "accuracy",
                "evaluations": evaluations_of(experiment, seed),
            }
            if "vq" in experiment["options"]["model"]:
                result["codebooks"] = [{"step": s, "similarity": 0.8, "unused": 0.1 * seed} for s in (300, 600, 720)]
            (folder / f"{name}-{seed}.json").write_text(json.dumps(result))


class Balance(HTMLParser):
    """Every tag is closed, in order: a second check besides the XML parser."""

    def __init__(self) -> None:
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        if tag not in VOID:
            expect(self.open and self.open.pop() == tag, f"</{tag}> closes something else")


def lines_expected(chart: dict) -> int:
    def several(line: dict) -> int:
        return max([len(line[name]) for name in ("keep", "centroids") if isinstance(line.get(name), list)], default=1)

    return sum(several(line) for line in chart["lines"])


def read_page(file: Path) -> ET.Element:
    text = file.read_text()
    parser = Balance()
    parser.feed(text)
    expect(not parser.open, f"left open: {parser.open}")
    expect(not re.search(r'(src|href)="(?!#|data:,)', text), "the page loads or links something")
    expect("http" not in text.replace("http-equiv", ""), "the page has an address")
    expect(not re.search(r"\b(nan|inf)\b", text), "a number that is none")
    return ET.fromstring(text)


def check_page(page: ET.Element, claims: dict) -> None:
    rows = page.findall(".//section[@id='scoreboard']//tbody/tr")
    expect(len(rows) == len(claims["claims"]) == 14, f"{len(rows)} claims on the scoreboard")
    order = [section.get("id") for section in page.find("body")[1:3]]
    expect(order == ["first", "scoreboard"], f"the page begins with {order}, not with source code and the scoreboard")
    for chart in claims["charts"]:
        figure = page.find(f".//figure[@id='chart-{chart['name']}']")
        expect(figure is not None, f"no figure {chart['name']}")
        lines = [g for g in figure.findall("svg/g") if g.find("path[@class='line']") is not None and len(g) > 1]
        computed = sum(1 for line in chart["lines"] if "bound" in line)
        legend = figure.findall("svg/text[@class='start']")
        expect(len(legend) == lines_expected(chart), f"{chart['name']}: {len(legend)} lines in the legend")
        # A line and its entry in the legend look the same; both have a marker.
        expect(len(lines) == 2 * (len(legend) - computed), f"{chart['name']}: {len(lines)} lines and legends")
        expect(figure.find("details//table") is not None, f"{chart['name']} has no numbers")


def check_in_chromium(page: Path, charts: int) -> None:
    """The script is appended to a copy of the page and leaves what it found in the document."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if not chromium:
        print("no Chromium: not looked at in a browser")
        return
    probe = """<script>
      const seen = [...document.querySelectorAll('figure svg.figure')].filter(svg => {
        const box = svg.getBoundingClientRect();
        return box.width > 200 && box.height > 100 && getComputedStyle(svg).visibility === 'visible';
      }).length;
      const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
      document.body.dataset.seen = seen + (wide ? ' too wide' : '');
    </script></body>"""
    copy = page.parent / "probe.html"
    copy.write_text(page.read_text().replace("</body>", probe))
    for width in (1280, 500):
        command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
                   f"--user-data-dir={page.parent}/chromium", f"--window-size={width},900", "--dump-dom", copy.as_uri()]
        run = subprocess.run(command, capture_output=True, text=True, timeout=240)
        expect("CONSOLE" not in run.stderr, f"the console says: {run.stderr}")
        seen = re.search(r'data-seen="([^"]*)"', run.stdout)
        expect(seen is not None, f"Chromium did not show the page: {run.stderr[-500:]}")
        expect(seen[1] == str(charts), f"{seen[1]} of {charts} figures seen at a width of {width}")


def check_png(ovq: Path, work: Path, claims: Path, charts: int) -> None:
    """Where gnuplot is installed, a PNG for every figure; otherwise a message."""
    command = [ovq, "report", work / "results", "--out", work / "plots", "--claims", claims, "--png", work / "png"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=work)
    if not shutil.which("gnuplot"):
        expect(run.returncode == 1 and "gnuplot-nox" in run.stderr, f"without gnuplot: {run.stderr}")
        return
    expect(run.returncode == 0, f"ovq report --png failed: {run.stderr}")
    images = list((work / "png").glob("*.png"))
    expect(len(images) == charts, f"{len(images)} PNG files of {charts} figures")
    for image in images:
        expect(image.read_bytes().startswith(b"\x89PNG") and image.stat().st_size > 2000, f"{image.name} is no picture")


def check_live_page(ovq: Path, work: Path) -> None:
    run = work / "runs/a & b"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"steps": 20}')
    step = {"kind": "step", "loss": 2.5, "accuracy": 0.5, "rate": 1e-3, "tokens": 1000, "seconds": 0.5}
    (run / "metrics.jsonl").write_text("".join(json.dumps({**step, "step": i}) + "\n" for i in range(1, 11)))
    command = [ovq, "report", "--watch", work / "runs", "--once", "--out", work / "live"]
    expect(subprocess.run(command, capture_output=True).returncode == 0, "ovq report --watch failed")
    page = read_page(work / "live/live.html")
    said = "".join(page.itertext())
    expect("10 of 20" in said and "a & b" in said, "the run is not on the page over runs in progress")
    expect(len(page.findall(".//figure/svg")) == 4, "not all figures of a run are there")


def main() -> None:
    ovq, root = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    claims = json.loads((root / CLAIMS).read_text())
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)

        def report(results: Path, out: Path) -> str:
            command = [ovq, "report", results, "--out", out, "--claims", root / CLAIMS]
            run = subprocess.run(command, capture_output=True, text=True, cwd=work)
            expect(run.returncode == 0, f"ovq report failed: {run.stderr}")
            return run.stdout

        # Nothing measured yet: computed lines are shown, the rest names the command that makes them.
        (work / "none").mkdir()
        report(work / "none", work / "empty")
        page = read_page(work / "empty/index.html")
        said = "".join(page.itertext())
        expect("ovq reproduce recall --only small" in said, "the command that makes results is not named")
        drawn = [figure.get("id") for figure in page.findall(".//figure") if figure.find("svg") is not None]
        expect(sorted(drawn) == ["chart-accuracy-keep", "chart-flops", "chart-flops-ratio", "chart-state-paper"],
               f"drawn without results: {drawn}")

        write_results(root, work / "results", [10, 11, 12])
        for bench in (root / "results").glob("bench-*.json"):
            shutil.copy(bench, work / "results")
        printed = report(work / "results", work / "report")
        charts = len(claims["charts"])
        expect(f"{charts} of {charts} figures have lines" in printed, printed)
        page = read_page(work / "report/index.html")
        check_page(page, claims)
        expect("made<up>" in "".join(page.itertext()), "the commit is not named as it is")
        for chart in claims["charts"]:
            ET.parse(work / f"report/figures/{chart['name']}.svg")
        check_in_chromium(work / "report/index.html", charts)
        check_png(ovq, work, root / CLAIMS, charts)
        check_live_page(ovq, work)
    print(f"{charts} figures, {len(claims['claims'])} claims: as expected")


main()
