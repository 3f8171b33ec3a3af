"""The documents name commands, options, files and placers that exist."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from benchmarks import result_pages
from benchmarks.claims import claim
from benchmarks.stored_rows import Stored, hash_of, origin, row_files, stored_rows
from benchmarks.written_pages import TEMPLATES, filled
from placewright.files.cluster_file import (
    ClusterDocument,
    DeviceEntry,
    LinkEntry,
    Strict,
    cluster_of,
)
from placewright.files.plan_document import PlanDocument
from placewright.placers.registry import placer_class, placer_names
from placewright.session import devices
from placewright.suites.replay import ReplayDocument
from tests.prose import FIGURE, Prose, pages_of, prose_of, table_of, words

ROOT = Path(__file__).parents[1]
GENERATED = re.compile(
    r"docs/reference/(commands/|placers/|python-names|catalogue)"
)  # by `make site`
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    if not GENERATED.match(str(path.relative_to(ROOT)))
)
COMMANDS = ("devices", "graph", "profile", "place", "simulate", "run", "compare", "placers")
COMMANDS += ("train", "bench", "export", "report", "explain", "diff", "replay", "advise")


def test_commands_in_documents_exist() -> None:
    for path in DOCUMENTS:
        for command in re.findall(r"^(?:\$ )?placewright ([a-z][a-z-]*)", path.read_text(), re.M):
            assert command in COMMANDS, f"{path.name} names 'placewright {command}'"


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            there = (path.parent / target).resolve()
            made = there.is_relative_to(ROOT) and GENERATED.match(str(there.relative_to(ROOT)))
            assert made or there.exists(), f"{path.name} links to {target}"


def test_links_to_parts_of_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target, part in re.findall(r"\]\(([^)#:]+\.md)#([^)]+)\)", path.read_text()):
            titles = re.findall(r"^#+ (.*)$", (path.parent / target).read_text(), re.M)
            anchors = [re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles]
            assert part in anchors, f"{path.name} links to {target}#{part}"


def test_the_table_of_the_house_names_files_and_rooms_that_exist() -> None:
    text = (ROOT / "docs" / "develop" / "architecture.md").read_text()
    source = ROOT / "src" / "placewright"
    table = text.split("## Where is ...")[1].split("\n## ")[0]
    named = re.findall(r"`([\w/]+(?:/|\.py))`", table)
    assert len(named) > 40
    assert [name for name in named if not (source / name).exists()] == []
    rooms = re.findall(r"^\| `(\w+)/` \|", text, re.M)
    assert sorted(rooms) == sorted(path.parent.name for path in source.glob("*/__init__.py"))


def test_paths_and_modules_in_decisions_exist() -> None:
    """A path is of the repository, of the package or of the documentation."""
    source = ROOT / "src" / "placewright"
    rooms = {path.name.removesuffix(".py") for path in source.iterdir()}
    missing: list[str] = []
    for document in (ROOT / "docs" / "develop" / "decisions").glob("*.md"):
        text = re.sub(r"^(```|~~~).*?^\1", "", document.read_text(), flags=re.S | re.M)
        for name in re.findall(r"`([\w./-]+)`", text):
            first, *rest = name.split(".")
            if "/" in name and name == name.lower():
                homes = (ROOT, source, ROOT / "docs")
                exists = any((home / name).exists() for home in homes)
            elif first in rooms and rest and "/" not in name:
                exists = _is_defined(source, name)
            else:
                continue
            missing += [] if exists else [f"{document.name}: {name}"]
    assert missing == []


def _is_defined(source: Path, name: str) -> bool:
    """True if a dotted name is a module of the package, or of a name that its module defines."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = source.joinpath(*parts[:length])
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module.exists():
            rest = parts[length:]
            defined = re.findall(r"^(?:def|class) (\w+)|^(\w+)\b.* = ", module.read_text(), re.M)
            return not rest or any(rest[0] in names for names in defined)
    return False


def test_placers_in_commands_exist() -> None:
    for path in DOCUMENTS:
        for names in re.findall(r"--placers? ([\w,:-]+)", path.read_text()):
            for name in names.split(","):
                is_name = re.fullmatch("[a-z0-9-]+", name)  # not module:Class, nor NAME
                assert not is_name or name in placer_names(), f"{path.name} names placer '{name}'"


def test_the_published_schema_is_the_one_that_is_checked() -> None:
    for name, document in (("plan", PlanDocument), ("replay", ReplayDocument)):
        written = json.loads((ROOT / "docs" / "reference" / f"{name}.schema.json").read_text())
        made = json.loads(json.dumps(document.model_json_schema(by_alias=True)))
        assert {**written, "title": ""} == {**made, "title": ""}


def test_every_field_of_a_cluster_file_is_documented() -> None:
    """With its default, in the table of what it belongs to."""
    text = (ROOT / "docs" / "reference" / "cluster-file.md").read_text()
    parts = {"## The file": ClusterDocument, "## A device": DeviceEntry, "## A link": LinkEntry}
    for title, entry in parts.items():
        table = text.split(title)[1].split("\n## ")[0]
        rows = re.findall(r"^\| (`.*?`) \| (.*?) \|", table, re.M)
        named = {name: default for names, default in rows for name in re.findall(r"`(\w+)`", names)}
        assert set(named) == {field.alias or name for name, field in entry.model_fields.items()}
        for name, default in _plain_defaults(entry).items():
            assert named[name].strip("`") == default, name


def _plain_defaults(entry: type[Strict]) -> dict[str, str]:
    """Of the fields whose default is a number, a word or a truth."""
    found = {name: field.default for name, field in entry.model_fields.items()}
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value).lower()
        for name, value in found.items()
        if isinstance(value, int | float | str) and value != ""
    }


def test_cluster_files_in_documents_are_read() -> None:
    texts = [path.read_text() for path in DOCUMENTS]
    blocks = [block for text in texts for block in re.findall(r"```yaml\n(.*?)```", text, re.S)]
    clusters = [yaml.safe_load(block) for block in blocks if "placewright.cluster" in block]
    assert len(clusters) >= 3
    for data in clusters:
        cluster_of(ClusterDocument.model_validate(data))


def test_every_placer_is_documented() -> None:
    """Each has one row with its paper and objectives, and no row is of a placer that is not."""
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (.*?) \| (.*?) \|",
        (ROOT / "docs" / "reference" / "placers.md").read_text(),
        re.M,
    )
    assert sorted(name for name, _, _ in rows) == list(placer_names())
    for name, paper, objectives in rows:
        assert paper == placer_class(name).paper
        assert objectives == ", ".join(placer_class(name).objectives)


def test_default_devices_are_what_the_documents_say(monkeypatch: pytest.MonkeyPatch) -> None:
    text = " ".join((ROOT / "docs" / "concepts" / "measuring.md").read_text().split())
    machines = {
        ("cpu", "cpu:0", "cpu:1", "GPU.0", "NPU"): "cpu,GPU.0,NPU",
        ("cpu", "cpu:0", "cpu:1"): "cores",
        ("cpu", "cpu:0"): "cpu",
    }
    for names, expected in machines.items():
        monkeypatch.setattr(devices, "candidates", lambda runtime, names=names: names)
        assert devices.default_names(None) == expected
    assert "with a GPU or an NPU gives the whole processor as one device, `cpu`" in text
    assert "with nothing but a processor gives `cores` if it has several" in text


def test_local_search_starts_as_the_documents_say() -> None:
    rows = (ROOT / "docs" / "reference" / "placers.md").read_text().splitlines()
    row = next(row for row in rows if row.startswith("| `local-search` |"))
    assert "from the best list schedule or baseline" in row


def test_version_and_licence_of_the_package_stand_where_they_are_repeated() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == project["version"]
    assert project["license"].split(" AND ")[0] == citation["license"]
    assert citation["keywords"] == project["keywords"]
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_changelog_of_a_release_that_never_was_is_short() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 60


def test_the_site_has_the_fonts_and_the_blue_of_the_report_page() -> None:
    page = (ROOT / "src" / "placewright" / "report" / "assets" / "page.css").read_text()
    site = (ROOT / "docs" / "static" / "site.css").read_text()
    light, dark = re.findall(r"--mark:(#\w+)", page)
    assert set(re.findall(r"--color-brand-\w+: (#\w+)", site)) == {light, dark}
    assert site.index(light) < site.index("prefers-color-scheme: dark") < site.index(dark)
    [fonts] = re.findall(r"body\{[^}]*font:\S+ ([^;}]+)", page)
    assert f"--font-stack: {fonts.replace(',', ', ')};" in site


def test_code_on_the_site_can_be_read() -> None:
    """Each colour has the contrast to its ground that WCAG 2 asks of text: 4.5 to 1."""
    styles = pytest.importorskip("pygments.styles", reason="the site's tools: pip install furo")
    named = re.findall(
        r'^pygments\w*_style = "(.*)"', (ROOT / "docs" / "conf.py").read_text(), re.M
    )
    assert len(named) == 2
    for style in map(styles.get_style_by_name, named):
        ground = _luminance(style.background_color.lstrip("#"))
        for token, look in style:
            if look["color"]:
                dark, light = sorted([_luminance(look["color"]), ground])
                assert (light + 0.05) / (dark + 0.05) >= 4.5, (style.__name__, token)


def _luminance(colour: str) -> float:
    """Of a colour such as ``d98200``, from 0 for black to 1 for white."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def is_whole_clone() -> bool:
    """True in a checkout that has its history."""
    command = ["git", "rev-parse", "--is-shallow-repository"]
    try:
        asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return False
    return asked.returncode == 0 and asked.stdout.strip() == "false"


def test_result_pages_are_made_from_the_rows() -> None:
    """`python -m benchmarks.result_pages` writes them again."""
    folder = ROOT / "docs" / "results"
    stored = {name: entry.sha256 for name, entry in stored_rows(folder).items()}
    rows = row_files(folder)
    changed = {name for name, path in rows.items() if stored.get(name) != hash_of(path)}
    assert not changed, "python -m benchmarks.result_pages"
    if is_whole_clone():
        for name, entry in stored_rows(folder).items():
            command = ["git", "merge-base", "--is-ancestor", entry.commit, "HEAD"]
            assert subprocess.run(command, cwd=ROOT).returncode == 0, name
    for name, text in result_pages.table_pages(folder).items():
        assert (folder / name).read_text() == text, f"{name}: python -m benchmarks.result_pages"
    told = r"Command: `.*(Rows|Values): .*, last changed on .* after commit"
    for path in folder.glob("*.md"):
        assert path.name == "index.md" or re.search(told, path.read_text()), path.name


@pytest.mark.slow
def test_reports_and_prose_of_results_are_made_from_the_rows() -> None:
    """All pages but the one with links to them are made."""
    folder = ROOT / "docs" / "results"
    made = result_pages.report_pages(folder)
    tables = {f"{name}.md" for name in result_pages.PAGES}
    assert {path.name for path in folder.glob("*.md")} == {*made, *tables, "index.md"}
    for name, text in made.items():
        assert (folder / name).read_text() == text, f"{name}: python -m benchmarks.result_pages"


def test_a_page_names_the_machine_of_its_rows() -> None:
    row = {"machine": "6; 207; A processor; 2; 1 KB; 2 cores", "version": "openvino 1",
           "date": "2026-01-02"}  # fmt: skip
    stored = Stored("", "abc", "2026-01-03")
    assert origin("go", "a.json", stored, {"rows": [row, row]}) == [
        "Command: `go`. Rows: [a.json](a.json), last changed on 2026-01-03 after commit `abc`.",
        "Machine: A processor (family 6, model 207, stepping 2), 2 cores. Version: openvino 1. "
        "Date: 2026-01-02.",
    ]


def test_a_page_says_that_no_row_names_the_machine() -> None:
    _, about = origin("go", "a.json", Stored("", "abc", "2026-01-03"), {"rows": [{"value": 1}]})
    assert about == "Machine: not recorded."


def test_a_template_and_its_values_have_the_same_names() -> None:
    assert filled("{{a}} of {{b}}, {{a}}", {"a": "1", "b": "2"}) == "1 of 2, 1"
    for values in ({"a": "1"}, {"a": "1", "b": "2", "c": "3"}):
        with pytest.raises(ValueError, match="differ in"):
            filled("{{a}} of {{b}}", values)


def test_a_sentence_that_rows_do_not_support_makes_no_page() -> None:
    assert claim(True, "It is faster.") == "It is faster."
    with pytest.raises(ValueError, match="do not support this sentence any more: It is faster"):
        claim(False, "It is faster.")


# Limits for the English of the documents: all pages together, and a single page.
MEAN_WORDS, MEAN_WORDS_OF_A_PAGE = 17.0, 18.0
LONG, LONG_ON_A_PAGE = 0.05, 0.10
SEMICOLONS, SEMICOLONS_ON_A_PAGE = 0.05, 0.10


def test_sentences_are_short_and_plain() -> None:
    pages = {path.relative_to(ROOT).as_posix(): path.read_text() for path in DOCUMENTS}
    counted = {name: prose_of([text]) for name, text in pages.items()}
    faults = [f"{name}: {fault}" for name, prose in counted.items() for fault in _of_page(prose)]
    assert faults == []
    whole = prose_of(pages.values())
    assert whole.mean_words <= MEAN_WORDS
    assert whole.long <= LONG
    assert whole.semicolons <= SEMICOLONS


def test_docstrings_open_with_a_thing_or_an_action() -> None:
    """A first line such as "What a run can be told" makes the reader guess what it describes."""
    riddle = re.compile(r"(?:what|where|who|whose|whether|when|how|which|why)\b", re.I)
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        f"{path.relative_to(ROOT)}: {text.splitlines()[0]}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, kinds) and riddle.match(text := ast.get_docstring(node) or "")
    ]
    assert found == []


def test_our_counts_stand_next_to_those_of_other_projects() -> None:
    """Rounded, so that a changed sentence does not change them."""
    pages = [path.read_text() for path in DOCUMENTS if path.is_relative_to(ROOT / "docs")]
    prose = prose_of(pages)
    text = (ROOT / "docs" / "develop" / "writing.md").read_text()
    rows = {
        name: float(ours)
        for name, ours in re.findall(r"^\| (.*?) \|.*\| ([\d.]+)(?: %)? \|$", text, re.M)
    }
    assert rows["words per sentence, mean"] == pytest.approx(prose.mean_words, abs=0.5)
    assert rows["sentences above 30 words"] == pytest.approx(100 * prose.long, abs=1)
    assert rows["sentences with a semicolon"] == pytest.approx(100 * prose.semicolons, abs=1)
    assert rows["sentences in the passive"] == pytest.approx(100 * prose.passive, abs=1)
    assert rows["openings with what, where, who"] == len(prose.openings) == 0
    assert rows['sentences with "you"'] == pytest.approx(100 * prose.addressed, abs=1)


def _of_page(prose: Prose) -> list[str]:
    """What is wrong with the English of one page; two sentences of a short page may be long."""
    slack = 2.0 / max(1, len(prose.sentences))
    faults = [f"begins '{sentence[:40]}'" for sentence in prose.openings]
    faults += [f"'{word}'" for word in prose.synonyms]
    if prose.mean_words > MEAN_WORDS_OF_A_PAGE:
        faults.append(f"{prose.mean_words:.1f} words in the mean")
    if prose.long > max(LONG_ON_A_PAGE, slack):
        faults.append(f"{prose.long:.0%} of sentences above 30 words")
    if prose.semicolons > max(SEMICOLONS_ON_A_PAGE, slack):
        faults.append(f"{prose.semicolons:.0%} of sentences with a semicolon")
    return faults


# Sentences with a time, a share, a size or a factor that nobody measured, by the page.
RULES_AND_EXAMPLES = {
    "CHANGELOG.md": ["less than 1 MiB of light weights"],
    "SECURITY.md": ["The limits are 5 s and 1 GiB"],
    "docs/concepts/bounds.md": [
        "A search may find 10 ms",
        "that 9 ms is impossible",
        "A gap of 5 % means",
        "no placement reaches 9 ms",
    ],
    "docs/concepts/measuring.md": [
        "gives each way a turn: 40 ms of calls",
        "A call of 100 ms or more is a turn by itself",
        "tensors of 2 to 200 KB",
        "5 % of the units' seconds)",
        "the whole 95 % interval of the median ratio",
        "at least 1 %.",
        "Differences below 0.1 ms do not count",
        "Their limit is a factor of 1.15",
    ],
    "docs/concepts/plans.md": ["a weight of 1 MiB or more", "less than 1 MiB of weights"],
    "docs/develop/decisions/030-measuring-in-place.md": ["known within 1 %", "1.2533 s / √n"],
    "docs/develop/decisions/084-recommended-placement.md": ["more than 3 % behind", "Within 3 %"],
    "docs/how-to/limits.md": ["The search takes 5 s.", "95 % of them take less than the limit"],
    "docs/how-to/report.md": ["Would 64 MiB for"],
    "docs/how-to/serve.md": ["(10 s at most)", "may take up to 1 GiB together"],
    "docs/how-to/streams.md": ["within 3 % of the fastest one", "take less than 200 ms"],
    "docs/develop/benchmarks.md": [
        "over 3 % slower than one device",
        "gains of 10 % and more",
        "whole 95 % interval is slower",
    ],
    "docs/reference/models.md": ["all tensors of a file together may have 64 MiB"],
    "docs/reference/language-models.md": [
        "the search ends as soon as the gap is at most 0.2 %",
        "begin only if the gap is above 1 %",
    ],
    "docs/reference/runtime-onnxruntime.md": ["Initializers of 4 KiB and more"],
    "docs/reference/simulation.md": [
        "at least 20 × the bytes",
        "busy for 5.7 µs more",
        "takes bytes / 7600 µs",
        "busy for 25 µs more",
        "1 µs of its last reader",
    ],
    "benchmarks/pages/tarnawski.md": ["six accelerators of 16 GiB"],
    "benchmarks/result_pages.py": [  # budgets, limits and thresholds of commands
        "gets 60 % of the bytes",
        "with a larger share `code` (85 %)",
        "With 60 % no placement",
        "20 seconds for each placer",
        "within 6 seconds",
        "more than 95 % of the operators",
        "less than 10 us at the peaks",
        "differ by at most 5 %",
        "are 2.5 times as long",
        "at most 70 % of the model",
        "memory for 75 % of what the whole step takes",
        "within 5 s and 1 GiB",
    ],
}


def sources_of_prose() -> dict[str, str]:
    """Pages that somebody types, and the prose of pages that are made: templates and texts."""
    pages = [path for path in DOCUMENTS if not path.is_relative_to(ROOT / "docs" / "results")]
    pages += [*TEMPLATES.glob("*.md"), ROOT / "docs" / "results" / "index.md"]
    texts = [section.text for _, sections in result_pages.PAGES.values() for section in sections]
    typed = {path.relative_to(ROOT).as_posix(): path.read_text() for path in pages}
    return {**typed, "benchmarks/result_pages.py": "\n\n".join(texts)}


def test_measured_figures_come_from_rows_only() -> None:
    """Two pages cannot disagree about a number that one command takes from rows.

    A new rule, limit or example is added to the table above; a measurement belongs to the results.
    """
    found = {
        name: [
            sentence
            for sentence in prose_of([text]).figures
            if not any(part in sentence for part in RULES_AND_EXAMPLES.get(name, ()))
        ]
        for name, text in sources_of_prose().items()
    }
    assert {name: sentences for name, sentences in found.items() if sentences} == {}


def test_the_table_of_rules_and_examples_names_no_sentence_that_is_gone() -> None:
    sources = sources_of_prose()
    for name, parts in RULES_AND_EXAMPLES.items():
        sentences = prose_of([sources[name]]).figures
        gone = [part for part in parts if not any(part in sentence for sentence in sentences)]
        assert gone == [], name


def test_pages_in_restructured_text_are_counted_like_ours(tmp_path: Path) -> None:
    """Two sentences of four words and one of two; no heading, code, or release notes."""
    pytest.importorskip("docutils")
    (tmp_path / "release").mkdir()
    (tmp_path / "release" / "notes.rst").write_text("It is new.\n")
    (tmp_path / "page.rst").write_text(
        "A title\n=======\n\nYou call :func:`go` twice. It is\n*not* slow.\n\n"
        ".. code-block:: python\n\n   x = 1\n\n::\n\n   Nothing of this.\n\n* One item.\n"
    )
    prose = prose_of(pages_of(tmp_path))
    assert [words(sentence) for sentence in prose.sentences] == [4, 4, 2]
    assert prose.addressed == pytest.approx(1 / 3)
    assert "| words per sentence, mean | 3.3 |" in table_of({"theirs": prose})


def test_the_passive_is_found() -> None:
    passive = ["It is not read.", "Rows were written by a command.", "Each file is first checked."]
    assert prose_of(passive).passive == 1.0
    assert prose_of(["It is fast.", "You read it.", "The answer is no."]).passive == 0.0


def test_figures_are_found() -> None:
    measured = [
        "It took 3 ms.",
        "It is 12 % faster.",
        "It is three times as fast.",
        "A gap of 1.99.",
    ]
    assert all(map(FIGURE.search, [*measured, "OR-tools takes 48 MiB.", "It takes 1.3 × that."]))
    assert not any(map(FIGURE.search, ["Three models run.", "It has 8,763 ops.", "Ray 2.60 runs."]))
