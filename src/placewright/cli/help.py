"""Help of a command: options in panels with values and defaults, examples, `--help-all`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from placewright.core.quantities import counted

MODEL, LIMITS, GOAL, SEARCH, MEASURING, OUTPUT, ISOLATION, OTHER = PANELS = (
    "Model",
    "Devices and limits",
    "Goal",
    "Search",
    "Measuring",
    "Output",
    "Isolation",
    "Options",
)


@dataclass(frozen=True)
class Shown:
    """Appearance of an option in the help."""

    panel: str  # one of `PANELS`
    value: str = ""  # placeholder of the value; "" for a flag
    default: str = ""  # text of a default that the option's declaration leaves to the program
    is_rare: bool = False  # only `--help-all` shows it


OPTIONS = {
    "--shape": Shown(MODEL, "NAME=SIZES", "those of the file"),
    "--calls": Shown(MODEL, "TIMES:NAME=SIZES", is_rare=True),
    "--value": Shown(MODEL, "NAME=NUMBER", is_rare=True),
    "--granularity": Shown(MODEL, "PART"),
    "--target": Shown(GOAL, "FORMAT", "any", is_rare=True),
    "--resident": Shown(MODEL, "NAME", is_rare=True),
    "--state": Shown(MODEL, "OUTPUT=INPUT", is_rare=True),
    "--fold-constants": Shown(MODEL),
    "--optimizer": Shown(MODEL, "NAME"),
    "--colocate-backward": Shown(MODEL, is_rare=True),
    "--dropout": Shown(MODEL, is_rare=True),
    "--prompt": Shown(MODEL, "TOKENS", "512"),
    "--generate": Shown(MODEL, "TOKENS", "128"),
    "--context": Shown(MODEL, "TOKENS", "4096, or what the request needs"),
    "--kv": Shown(MODEL, "FORMAT", "f16"),
    "--micro-batch": Shown(MODEL, "TOKENS", "512", is_rare=True),
    "--sequences": Shown(MODEL, "N", "1", is_rare=True),
    "--weights": Shown(MODEL, "FORMAT", "that of the file"),
    "--sweep": Shown(GOAL, "FIELD=NUMBERS"),
    "--reach": Shown(GOAL, "TOKENS"),
    "--model": Shown(MODEL, "FILE", "the path in the plan"),
    "--inputs": Shown(MODEL, "FILE", "random values"),
    "--searched": Shown(MODEL),
    "--set": Shown(MODEL, "OP=DEVICE"),
    "--devices": Shown(LIMITS, "NAMES", "all of the runtime, or the cores of a lone CPU"),
    "--cluster": Shown(LIMITS, "FILE"),
    "--catalogue": Shown(LIMITS, "[PATTERN]"),
    "--runtime": Shown(LIMITS, "NAME", "the reader's, else the first installed"),
    "--memory": Shown(LIMITS, "DEVICE=BYTES", "what the device has"),
    "--pin": Shown(LIMITS, "OP=DEVICE"),
    "--precision": Shown(LIMITS, "NAME", "that of the model", is_rare=True),
    "--objective": Shown(GOAL, "NAME", "latency"),
    "--latency-limit": Shown(GOAL, "TIME", "none"),
    "--limit": Shown(GOAL, "QUANTITY=AMOUNT", "none"),
    "--pareto": Shown(GOAL, "N", "no front"),
    "--execution-model": Shown(
        GOAL,
        "NAME",
        "that of a stored problem; else event, or max-load for throughput",
        is_rare=True,
    ),
    "--copies": Shown(GOAL, "RULE", "the rule that fits best"),
    "--dispatch": Shown(GOAL, "RULE", "rank", is_rare=True),
    "--replicate": Shown(GOAL, is_rare=True),
    "--samples-in-flight": Shown(GOAL, "N", "1, or the number in a stored problem", is_rare=True),
    "--placer": Shown(SEARCH, "NAME"),
    "--placers": Shown(SEARCH, "NAMES"),
    "--set-placer": Shown(SEARCH, "KEY=VALUE", is_rare=True),
    "--policy": Shown(SEARCH, "FILE", is_rare=True),
    "--budget": Shown(SEARCH, "TIME", "10s, or 5s with --quick, without another limit"),
    "--evaluations": Shown(SEARCH, "N", "no limit"),
    "--core-seconds": Shown(SEARCH, "TIME", "no limit", is_rare=True),
    "--total": Shown(SEARCH, "TIME", "no limit"),
    "--seed": Shown(SEARCH, "N"),
    "--seeds": Shown(SEARCH, "N"),
    "--evaluator": Shown(SEARCH, "NAME", is_rare=True),
    "--workers": Shown(SEARCH, "N", "this process alone"),
    "--ray": Shown(SEARCH, "[ADDRESS]", is_rare=True),
    "--quick": Shown(MEASURING),
    "--profiling": Shown(MEASURING, "TIME", is_rare=True),
    "--remeasure": Shown(MEASURING, is_rare=True),
    "--compile": Shown(MEASURING, is_rare=True),
    "--check": Shown(MEASURING, default="--check"),
    "--runs": Shown(MEASURING, "N", "15, or 6 with --engine"),
    "--engine": Shown(LIMITS, "NAME", "none"),
    "--engine-folder": Shown(LIMITS, "FOLDER", "that of PLACEWRIGHT_LLAMA_CPP, else the path"),
    "--servers": Shown(LIMITS, "ADDRESSES", "those of the plan; in profile, the engine's own"),
    "--threads": Shown(LIMITS, "N", "one for each core", is_rare=True),
    "--boundaries": Shown(MEASURING),
    "--samples": Shown(MEASURING, "N", "a single sample"),
    "--seconds": Shown(MEASURING, "SECONDS"),
    "--in-flight": Shown(MEASURING, "N", "chosen"),
    "--timeout": Shown(
        MEASURING, "TIME", "60s, or 20 times the sum of the op times if that is more"
    ),
    "--output": Shown(OUTPUT, "FILE"),
    "--to": Shown(OUTPUT, "FORMAT"),
    "--problems": Shown(MODEL, "NAMES", "all"),
    "--models": Shown(MODEL, "NAMES"),
    "--workloads": Shown(MODEL, "NAMES", "all"),
    "--data": Shown(MODEL, "PATH", "none"),
    "--fetch": Shown(MODEL, "FOLDER", "no download"),
    "--unseen": Shown(MODEL),
    "--clusters": Shown(LIMITS, "NAMES"),
    "--objectives": Shown(GOAL, "NAMES"),
    "--methods": Shown(SEARCH, "NAMES", "all placers that need no training, and replicated"),
    "--controls": Shown(SEARCH),
    "--starts": Shown(SEARCH),
    "--run": Shown(SEARCH),
    "--results": Shown(OUTPUT, "FILE"),
    "--profile": Shown(OUTPUT, "FILE", "no picture"),
    "--over-time": Shown(OUTPUT, "FILE", "no picture"),
    "--graphs": Shown(MODEL, "FILE"),
    "--episodes": Shown(SEARCH, "N"),
    "--patience": Shown(SEARCH, "N"),
    "--tensorboard": Shown(OUTPUT, "FOLDER"),
    "--ops": Shown(OUTPUT, "[PATTERN]"),
    "--report": Shown(OUTPUT, "FILE"),
    "--trace": Shown(OUTPUT, "FILE"),
    "--json": Shown(OUTPUT),
    "--quiet": Shown(OUTPUT),
    "--isolate": Shown(ISOLATION, is_rare=True),
    "--isolation-limits": Shown(ISOLATION, "LIMITS", is_rare=True),
}
_MORE_HELP = [
    ("placewright COMMAND --help", "Show the options, defaults and examples of a command."),
    ("placewright COMMAND --help-all", "Show its rarely used options, too."),
]

EXAMPLES = {
    "placewright": (
        "devices",
        "graph model.onnx",
        "place model.onnx --devices cpu:0,cpu:1 --report plan.html",
        "run plan.json",
    ),
    "devices": (
        "devices --runtime openvino",
        "devices --devices cpu:0,cpu:1 -o cluster.yaml",
        "devices --cluster modes.yaml",
        "devices --catalogue rtx",
    ),
    "graph": ("graph model.onnx", "graph model.onnx --ops 'layers.0.*'"),
    "profile": (
        "profile model.onnx --devices cpu:0,cpu:1",
        "profile model.gguf --engine llama.cpp --servers 127.0.0.1:50052",
    ),
    "placers": ("placers",),
    "place": (
        "place model.onnx --devices cpu:0,cpu:1 --report plan.html",
        "place model.onnx --devices cpu:0,cpu:1 --memory cpu:0=400MiB",
        "place model.onnx --devices catalogue:4gpu --objective throughput",
        "place model.gguf --devices rtx-4090,cpu --context 32k",
    ),
    "advise": (
        "advise model.gguf --devices rtx-4090,rtx-3060,cpu",
        "advise model.gguf --devices rtx-4090,cpu --sweep context=4k,32k",
        "advise model.gguf --devices rtx-4090,rtx-3060,cpu --reach 20",
    ),
    "simulate": ("simulate plan.json --set 'layers.0.*=cpu:1'",),
    "run": (
        "run plan.json",
        "run plan.json --inputs batch.npz",
        "run plan.json --samples 100",
        "run plan.json --engine llama.cpp",
    ),
    "report": ("report plan.json -o plan.html",),
    "explain": ("explain plan.json conv1",),
    "diff": ("diff plan.json other.json",),
    "export": ("export plan.json --to onnx-segments -o segments",),
    "compare": ("compare model.onnx --placers auto,heft,hsdag --evaluations 500",),
    "replay": ("replay phone.json", "replay phone.json --copies both --json"),
    "train": ("train --graphs zoo:rnnlm --placer zero-shot -o policy.safetensors",),
    "tarnawski": ("bench tarnawski --fetch workloads",),
    "suite": ("bench suite --problems inception --placers auto,heft",),
    "auto": ("bench auto --seconds 20",),
    "learned": ("bench learned --models resnet50 --seeds 5",),
    "paper": ("bench paper hsdag",),
    "llm-ab": ("bench llm-ab --data comparisons.json",),
}


class PanelledCommand(TyperCommand):
    """A command whose help has panels. Typer draws panels with Rich alone, not in plain text."""

    shows_all = False

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Arguments as users write them, then the options."""
        arguments = [metavar_of(parameter) for parameter in _arguments(self)]
        return [*arguments, self.options_metavar or ""]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, then each panel with its options."""
        arguments = [
            (metavar_of(parameter), parameter.help or "") for parameter in _arguments(self)
        ]
        if arguments:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        for panel, options in panels_of(self, shows_all=self.shows_all):
            with formatter.section(panel):
                formatter.write_dl([record_of(parameter) for parameter in options])
        with formatter.section("Help"):
            formatter.write_dl(self._helps())

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples."""
        _write_examples(formatter, EXAMPLES.get(self.name or "", ()))

    def _helps(self) -> list[tuple[str, str]]:
        rows = [("--help", "Show this page.")]
        n_more = sum(shown_of(option).is_rare for option in _options(self))
        if n_more and not self.shows_all:
            more = counted(n_more, "rarely used option")
            rows.append(("--help-all", f"Show {more}, too."))
        return rows


class ListOfCommands(TyperGroup):
    """The program itself: its commands, and how to go on from here."""

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the first steps, and where each command's options are."""
        _write_examples(formatter, EXAMPLES.get(self.name or "", ()))
        if self.name in EXAMPLES:
            with formatter.section("More help"):
                formatter.write_dl(_MORE_HELP)


class Application(typer.Typer):
    """Typer whose commands have panels."""

    def command(self, name: str | None = None, **given: Any) -> Any:
        """See `typer.Typer.command`."""
        return super().command(name, **{"cls": PanelledCommand, **given})


def panels_of(command: Any, *, shows_all: bool) -> Iterator[tuple[str, list[Any]]]:
    """Each panel that has options, in the order of `PANELS`.

    Args:
        shows_all: take rarely used options, too.
    """
    options = [option for option in _options(command) if shows_all or not shown_of(option).is_rare]
    for panel in PANELS:
        within = [option for option in options if shown_of(option).panel == panel]
        if within:
            yield panel, within


def shown_of(option: Any) -> Shown:
    """Appearance of an option in the help; without an entry of its own it is in the last panel."""
    return OPTIONS.get(_flag(option)) or Shown(OTHER)


def names_of(option: Any) -> str:
    """The names of an option with the placeholder of its value, as in ``-o, --output FILE``."""
    names = ", ".join(option.opts)
    if option.is_flag:
        return " / ".join([names, *option.secondary_opts])
    return f"{names} {shown_of(option).value}"


def default_of(option: Any) -> str:
    """Text of an option's default; "" for a flag that is off and for a value that is optional."""
    value = option.default
    if option.required:
        return ""
    if value is None or value is False or value in ("", (), []) or callable(value):
        return shown_of(option).default
    if value is True:
        return str(option.opts[0])
    return f"{value:g}" if isinstance(value, float) else str(value)


def record_of(option: Any) -> tuple[str, str]:
    """Names and help of an option, with its default."""
    default = "required" if option.required else default_of(option)
    note = default if option.required else f"default: {default}"
    text = option.help or ""
    return names_of(option), f"{text}  [{note}]" if default else text


def metavar_of(argument: Any) -> str:
    """An argument as usage lines write it."""
    return str(argument.metavar or argument.name.upper())


def show_all(ctx: typer.Context, is_asked: bool) -> None:
    """Print the help with rarely used options, and end: the callback of ``--help-all``."""
    if is_asked:
        assert isinstance(ctx.command, PanelledCommand)
        ctx.command.shows_all = True
        typer.echo(ctx.get_help())
        raise typer.Exit


def help_all() -> inspect.Parameter:
    """The parameter of a command that is its option ``--help-all``."""
    option = typer.Option("--help-all", is_eager=True, callback=show_all, expose_value=False)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter("help_all", kind, default=False, annotation=Annotated[bool, option])


def _write_examples(formatter: Any, examples: Sequence[str]) -> None:
    if examples:
        with formatter.section("Examples"):
            for line in examples:
                formatter.write(f"{' ' * formatter.current_indent}placewright {line}\n")


def _options(command: Any) -> list[Any]:
    return [
        parameter
        for parameter in command.params
        if parameter.param_type_name == "option"
        and _flag(parameter) != "--help-all"
        and not parameter.hidden
    ]


def _arguments(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "argument"]


def _flag(option: Any) -> str:
    return next((str(name) for name in option.opts if name.startswith("--")), str(option.opts[0]))
