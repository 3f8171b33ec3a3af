"""Makes the pages and pictures of docs/results from the rows beside them.

    python -m benchmarks.result_pages [docs/results]

Every number on these pages is computed from a results file: in the tables of `PAGES`, in the
reports of suites (`suite_pages`), and in the prose of templates (`written_pages`). Run it after a
results file has changed; a test compares the pages with what it makes.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import card_tables as cards
from benchmarks import data_sheet_tables as sheets
from benchmarks import headline_tables as headlines
from benchmarks import measured_tables as measured
from benchmarks import result_tables as tables
from benchmarks.pictures import draw_results
from benchmarks.stored_rows import note_changes, origin, stored_rows
from benchmarks.suite_pages import suite_pages
from benchmarks.written_pages import written_pages
from placewright.report.tables import markdown_table


@dataclass(frozen=True)
class Section:
    """One table of a page.

    Attributes:
        title: heading.
        file: results file, without its ending.
        command: that wrote the rows.
        text: what the columns mean.
        table: columns and cells from the content of the file.
        picture: SVG beside the results file, and its description.
    """

    title: str
    file: str
    command: str
    text: str
    table: Callable[[Any], tables.Table]
    picture: tuple[str, str] | None = None


def page(title: str, folder: Path, sections: Sequence[Section]) -> str:
    """Markdown of one page."""
    parts = [f"# {title}", "`python -m benchmarks.result_pages` made this page from stored rows."]
    stored = stored_rows(folder)
    for section in sections:
        path = folder / f"{section.file}.json"
        document = json.loads(path.read_text())
        parts += [
            f"## {section.title}",
            _wrapped(section.text),
            *origin(section.command, path.name, stored[path.name], document),
            "\n".join(markdown_table(*section.table(document))),
        ]
        if section.picture is not None:
            name, description = section.picture
            parts.append(f"![{description}]({name})")
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


_PAPERS = "placewright bench paper NAME --results docs/results/paper.json"
_MEASURED = "python -m benchmarks.measured_search --results docs/results/measured-search.json"
_RECORD = "python scripts/measure_cuda.py"
_DATA_SHEETS = "python -m benchmarks.data_sheets --data FOLDER"
PAGES: dict[str, tuple[str, tuple[Section, ...]]] = {
    "accuracy": ("Predicted and measured time", (
        Section(
            "One sample", "accuracy",
            "python -m benchmarks.accuracy --results docs/results/accuracy.json",
            "Latency of placements that calibration did not see. The error is "
            "|predicted / measured - 1|. Kendall's tau compares the two rankings, over pairs of "
            "placements that differ by more than their noise.",
            tables.accuracy, ("accuracy.svg", "Predicted against measured time of one sample"),
        ),
        Section(
            "A stream of samples", "accuracy-streams",
            "python -m benchmarks.accuracy --objective throughput "
            "--results docs/results/accuracy-streams.json",
            "Seconds per sample of played streams and of streams on two cores. "
            "*Replicated* is the unsplit model on both cores in turns.",
            tables.accuracy,
        ),
        Section(
            "A training step", "accuracy-training",
            "python -m benchmarks.accuracy --objective training --devices cpu:0,cpu:1 "
            "--placements 20",
            "Seconds of a training step. Each placement had few rounds on a noisy machine.",
            tables.accuracy,
        ),
        Section(
            "Two hosts", "hosts-costs", "python -m benchmarks.hosts",
            "Seconds of the whole model by the costs that two hosts measured, medians.",
            tables.hosts,
        ),
    )),
    "memory": ("Memory under a limit", (
        Section(
            "Training steps", "memory-training",
            "python -m benchmarks.memory --models zoo:MODEL",
            "Each of two devices gets 60 % of the bytes that the whole step takes on one device. "
            "The percentage is the error of the predicted peak.",
            tables.memory,
        ),
        Section(
            "Streams of samples", "memory-streams",
            "python -m benchmarks.memory --objective throughput --models zoo:MODEL",
            "Each of two cores gets 60 % of the bytes that the stream of the whole model takes. "
            "Three nets are written as users of PyTorch write them: `own:perceptron`, and with a "
            "larger share `own:residual` (85 %) and `own:gpt` (75 %). With 60 % no placement was "
            "found for these two.",
            tables.memory,
        ),
        Section(
            "A model that fits into no device", "enlarged", "python -m benchmarks.enlarged",
            "RNNLM with enlarged weights, on two cores with a limit each.",
            tables.enlarged,
        ),
        Section(
            "Two cores in one pool", "one-pool", "python -m benchmarks.one_pool --results FILE",
            "Two towers with the same weights, on two cores that share a pool. Two copies of the "
            "weights do not fit into it. Memory is the proportional set size of a process above "
            "that of a process with a tiny plan; the peak is that of its resident set. Outputs "
            "equal those of NumPy. Devices of OpenVINO and ONNX Runtime have option `weights: "
            "shared`: their weights come into memory with the first run.",
            tables.one_pool,
        ),
    )),
    "equality": ("Equal outputs", (
        Section(
            "Training steps", "equality-training",
            "python -m benchmarks.equality MODEL --objective training --runtime torch "
            "--devices cpu:0,cpu:1 --placements 3",
            "The loss and every updated tensor of random splits, compared with the unsplit step.",
            tables.equality_of_steps,
        ),
        Section(
            "Streams of samples", "stream-equality",
            "python -m benchmarks.stream_equality --results FILE",
            "Different samples through a random split over two cores, three in flight. The "
            "outputs of every sample are compared with the library's own unsplit run. Rows "
            "without a number under way are older than that count.",
            tables.equality_of_streams,
        ),
    )),
    "search": ("Search and bounds", (
        Section(
            "`auto` and the other placers", "auto", "placewright bench auto",
            "20 seconds for each placer, one seed. The gap is what `auto` had proved by then. "
            "The load is the highest number of processes that wanted to run on the two cores.",
            tables.auto_and_others,
        ),
        Section(
            "Gaps", "gaps",
            "placewright bench suite --placers auto --seconds 60 --results docs/results/gaps.json",
            "Value of `auto`, and its distance from the lower bound. If there are several runs "
            "of a problem, the table has the one with the smallest gap.",
            tables.gaps,
        ),
        Section(
            "Causes of gaps", "gap-causes", "python -m benchmarks.gap_causes",
            "The linear relaxation with the placement that was found separates two causes. It "
            "cannot see order and waiting. Its fractions hide transfers, because a unit that is "
            "half on each device pays none. The gaps are those of this command and its budget, and "
            "differ from those of the longer and shorter runs above.",
            tables.gap_causes,
        ),
        Section(
            "`zero-shot` on unseen models", "zero-shot", "python -m benchmarks.zero_shot",
            "At most ten evaluations of `zero-shot`, compared with as many of `local-search`, "
            "medians of five runs.",
            tables.zero_shot,
        ),
        Section(
            "Workers", "workers", "python -m benchmarks.workers",
            "The same runs with one worker and with two, median of three.",
            tables.workers,
        ),
        Section(
            "`auto` with workers", "auto-with-workers",
            "python -m benchmarks.auto_with_workers --results docs/results/auto-with-workers.json",
            "Values of `auto` with two workers and in one process. Each run may use 2,000 "
            "evaluations, without a limit of seconds or, with `--seconds 6`, within 6 seconds. A "
            "ratio below 1 is a better value with workers. Without a clock both take the same "
            "turns, so that their answers are equal.",
            tables.auto_with_workers,
        ),
    )),
    "workloads": ("Workloads of Tarnawski et al.", (
        Section(
            "`auto`", "gaps",
            "placewright bench suite --placers auto --seconds 60 --data DIR "
            "--results docs/results/gaps.json",
            "Value and bound of `auto`, in ms: max-load of the throughput workloads, latency "
            "under `subgraph` of the others.",
            tables.workload_gaps,
        ),
        Section(
            "Throughput, every method", "tarnawski",
            "placewright bench tarnawski --data DIR --seconds 40 "
            "--results docs/results/tarnawski.json",
            "Max-load in ms. A dash is a placement that does not exist or breaks a limit. "
            "The bound is the best of all methods.",
            partial(tables.workloads, objective="throughput"),
        ),
        Section(
            "Latency, every method", "tarnawski",
            "placewright bench tarnawski --data DIR --seconds 40 "
            "--results docs/results/tarnawski.json",
            "Latency under `subgraph` in ms.",
            partial(tables.workloads, objective="latency"),
        ),
    )),
    "learning": ("Experiments with learned placers", (
        Section(
            "Toys", "toy-ablations", "python -m benchmarks.toy_ablations",
            "*Separable* has seven independent operators with a best device each. A run has "
            "learned if more than 95 % of the operators are on their best device in the last "
            "100 of 4,000 placements. *Ladders* has two ladders of operators with heavy tensors, "
            "and one best placement among 2^16. A run has 5,000 evaluations to find it.",
            tables.toys,
        ),
        Section(
            "First policy of Placeto", "placeto-untrained",
            "python -m benchmarks.untrained_placeto docs/results/placeto-untrained.json",
            "Entropy of the policy before any update, as a share of the largest possible "
            "entropy. Median of ten seeds. With groups in cycles, sums left GNMT a share of "
            "0.000 and BERT 0.227.",
            tables.untrained,
        ),
        Section(
            "Evaluations on the hardware", "measured-search", _MEASURED,
            "Two cores of one machine under OpenVINO, one thread each: `cpu:0` computes in bf16, "
            "`cpu:1` in f32. Each evaluation compiles a placement and times it in three turns "
            "with the unsplit model on `cpu:0`. A time that beats all before it in a run is "
            "measured again in more turns, and the second one counts. After all searches the "
            "placements that they found took turns in random order, in loops with new runners, "
            "and the table has only the times of these loops. Equal placements share theirs. A "
            "placement is compared with the best single core in the same round, and medians are "
            "over seeds and rounds. The devices, `even-split` and `heft` evaluate nothing on the "
            "hardware. `cooling` and `random-grouped` learn nothing. The smaller part has the "
            "units outside the device with most units. It is 0 if the search ended with a single "
            "core.",
            measured.summary,
        ),
        Section(
            "Models of these evaluations", "measured-search", _MEASURED,
            "Sizes are smaller than in the zoo, so that an evaluation takes a fraction of a "
            "second. Neighbours are merged to few units, since each segment is compiled. The "
            "times are those of the whole model on one core.",
            measured.models,
        ),
        Section(
            "`zero-shot` on unseen models", "zero-shot", "python -m benchmarks.zero_shot",
            "The first line has ten evaluations of `zero-shot` over as many of `local-search`, "
            "medians of five runs. The second has two single candidates: the greedy placement of "
            "the trained policy over the schedule by earliest finish, which needs no policy. "
            "Ratios below 1 are faster. p is that of a two-sided Wilcoxon test for a median of 1.",
            tables.shares_of_zero_shot,
        ),
    )),
    "headlines": ("Headlines of the papers, side by side", (
        Section(
            "Claims", "paper", _PAPERS,
            "Each figure is time saved over other methods in per cent: 100 (1 - s / t), for s "
            "seconds of the method and t of the others' best.",
            headlines.claims,
        ),
        Section(
            "Published and found", "paper", _PAPERS,
            "*Published* follows from the paper's own seconds, as far as they are known; each "
            "paper's page says how certain they are. The other columns are ours, medians over "
            "seeds. *Under its rules* is the system under its own name; only `hsdag` evaluates "
            "single devices first. The docstring of each placer lists what differs from its "
            "paper: `post` keeps a limit of ours on the divergence of an update. "
            "*Ours, equal budget* is the form that we recommend. The last four columns "
            "are what comes out when nothing is learned, and what no placement can "
            "beat. A dash is a figure that is not known or was not run.",
            headlines.figures,
        ),
    )),
    "proofs": ("Proofs against brute force", (
        Section(
            "Claims", "proofs-all-features", "make fuzz-proofs PROOFS='--problems 10000'",
            "Every bound and status that a method claims on random small problems, compared with "
            "brute force. The share counts the problems that have a placement. Every feature of "
            "the [simulation rules](../reference/simulation.md) takes part.",
            tables.proofs,
        ),
        Section(
            "What each feature changes", "proofs",
            "make fuzz-proofs PROOFS='--changes 400'",
            "Problems whose best value is another without the feature. *First in, first out* "
            "never changes the best value of all orders: its share is that of problems in which "
            "a placement without an order has another value. *Orders* is the share in which an "
            "order beats every placement without one. A dash is a feature that the execution model "
            "does not have.",
            tables.feature_shares,
        ),
        Section(
            "Claims of methods that refuse features", "proofs-by-method",
            "python -m benchmarks.proofs --models max-load --methods cp-sat,maxload-ip "
            "--problems 10000 --results docs/results/proofs-by-method.json",
            "Problems of throughput without what the named methods refuse. All refuse shared "
            "channels, unlike links and routes through the host. Programs over ideals also refuse "
            "limits on energy and price, modes, memory pools, and phases that add up. Their rows "
            "are from the same command with `--methods dpl,ideal-dp,pipedream --problems 10000`.",
            tables.proofs,
        ),
        Section(
            "The simulator against plain references", "simulator",
            "python -m benchmarks.proofs --simulator 2000 --results docs/results/simulator.json",
            "Random placements of random small problems in which every feature of the "
            "[simulation rules](../reference/simulation.md) meets, each with a chance of its own. "
            "References are written from that page and import nothing of the simulator. Under "
            "`event`, values and peak bytes must be equal to the last bit, and half of the "
            "placements have an order. The other models must agree to 1e-9.",
            tables.simulator,
        ),
        Section(
            "Broken implications", "proofs", "make fuzz-proofs PROOFS='--mutations 1000'",
            "Each row breaks one rule that a bound rests on, and counts problems until the "
            "comparison notices a false claim. The first problem is one in which the rule "
            "binds, if it seldom does.",
            tables.mutations,
        ),
    )),
    "data-sheets": ("Costs from data sheets", (
        Section(
            "Whole models", "data-sheets", _DATA_SHEETS,
            "Predicted against measured latency of language models in eager PyTorch, from public "
            "op tables. Cells are median errors. *Judged* GPUs took no part in a fit. The column "
            "of assumed efficiencies is the roofline model without fits. The last column takes "
            "the fit of the other vendor's cards.",
            sheets.whole_models,
        ),
        Section(
            "Whole models that agree with their ops", "data-sheets", _DATA_SHEETS,
            "For some models the whole forward pass took more than 1.25 times, or less than 0.8 "
            "times, the sum of its measured ops. This table leaves them out.",
            sheets.trusted_models,
        ),
        Section(
            "One or two sequences", "data-sheets", _DATA_SHEETS,
            "The models of the first table with the smallest batches.",
            sheets.small_batches,
        ),
        Section(
            "Intervals", "data-sheets", _DATA_SHEETS,
            "Measured ops of judged GPUs whose seconds lie inside the interval of their "
            "prediction. Ops of less than 10 us at the peaks have none.",
            sheets.coverage,
        ),
        Section(
            "Launches and intervals of whole models", "data-sheets", _DATA_SHEETS,
            "The launch has the least median error over whole models, of several that were "
            "tried. An op alone includes the time that PyTorch needs for it.",
            sheets.launches,
        ),
        Section(
            "Efficiencies", "data-sheets", _DATA_SHEETS,
            "Share of the peak that ops of a class reach, by their time at the peak. These "
            "constants are in the catalogue.",
            sheets.constants,
        ),
        Section(
            "Products in half precision", "half-products",
            "python -m benchmarks.half_products WHEEL",
            "The catalogue assumes an efficiency for products in f16. Public tables have the "
            "seconds of the same products in serving engines. Nothing was fitted to them. Small "
            "products are predicted too fast or too slow by their launch.",
            sheets.half_products,
        ),
    )),
    "nvidia-gpu": ("A GPU of NVIDIA", (
        Section(
            "Without limits", "nvidia-gpu", f"{_RECORD} --objective latency --budget 6s",
            "Every way to run models of the zoo on the GPU and the processor of a rented virtual "
            "machine. At batch 1 its processor starts kernels more slowly than the GPU computes "
            "them.",
            cards.contenders,
        ),
        Section(
            "Under a memory limit", "nvidia-gpu", f"{_RECORD} --objective latency --budget 6s",
            "The GPU may use half of the bytes that the whole model takes there.",
            cards.within_limits,
        ),
        Section(
            "Equal outputs", "nvidia-gpu", _RECORD,
            "Outputs of random placements, and new parameters of training steps, compared with "
            "those of the unsplit model.",
            cards.equality,
        ),
        Section(
            "Predicted against measured", "nvidia-gpu", _RECORD,
            "Placements that calibration has not seen.",
            cards.accuracy,
        ),
        Section(
            "Data sheet against measured", "own-card", "python -m benchmarks.own_card",
            "Language models in eager PyTorch and f32, with random weights. The card took no part "
            "in the fit of the catalogue. Columns after the measured one are shares of it: the "
            "sum of the measured ops, and the costs of the data sheet with fitted and with "
            "assumed efficiencies.",
            cards.whole_models,
        ),
        Section(
            "Intervals of ops on this card", "own-card", "python -m benchmarks.own_card",
            "Measured ops whose seconds lie inside the interval of their prediction.",
            cards.intervals,
        ),
    )),
    "replays": ("Plans that others measured", (
        Section(
            "Phones of HOPE", "replays",
            "python -m benchmarks.replays redmi.json oneplus5t.json lenovo_k5.json --chosen-on 1 "
            "--beside redmi-later-copies.json redmi-one-commit.json",
            "Published plans of five networks for the CPU and GPU of phones, predicted from "
            "published operator and copy times. Only the rule about copies was chosen, on the "
            "first phone. A case is close if measured values differ by at most 5 %. The "
            "repository changed placements and times after it had stored the measured latency. "
            "Copy times are those of the commit that stored it. Later commits overwrote them by "
            "smaller ones, for the first phone alone; one file that they replaced is kept, and "
            "is named `with-copy`. This was found when errors were looked at. The last rows show "
            "what other stored data give: the later copy times, and all files as they were with "
            "the first stored latency. Files come from the parent of commit 2799224e, copy times "
            "from commit feb699a: `python -m benchmarks.replay_data hope FOLDER redmi -o "
            "redmi.json --without nasnet-mobile --copies COPIES`.",
            tables.replays,
        ),
        Section(
            "Rule chosen on other models", "replays",
            "python -m benchmarks.replays redmi.json oneplus5t.json lenovo_k5.json --chosen-on 1 "
            "--beside redmi-later-copies.json redmi-one-commit.json",
            "Errors of the first phone if the plans of a model have no say in the rule.",
            tables.replays_held_out,
        ),
        Section(
            "Errors by group", "replays",
            "python -m benchmarks.replays redmi.json oneplus5t.json lenovo_k5.json --chosen-on 1 "
            "--beside redmi-later-copies.json redmi-one-commit.json",
            "Errors under the chosen rule. Those furthest below zero have one CPU thread.",
            tables.groups_of_replays,
        ),
    )),
    "speed": ("Speed of the program", (
        Section(
            "Event simulator", "kernel",
            "python -m benchmarks.kernel --results docs/results/kernel.json",
            "Random placements on one core, compared with a plain-Python simulator that gives "
            "the same values.",
            tables.kernel, ("kernel.svg", "Ops per second against the number of ops"),
        ),
        Section(
            "A call of a loaded plan", "serving", "python -m benchmarks.serving",
            "Medians of rounds in which all ways take turns. The split alternates between two "
            "cores. *Per cut* is the split, minus unsplit, minus the copies, over the cuts.",
            tables.serving,
        ),
        Section(
            "A training loop", "training-loops", "python -m benchmarks.training_loops",
            "Samples per second with AdamW and batches of eight. On two cores PyTorch's loop, the "
            "split plan and DDP (two processes, gloo, four samples each) take turns of five steps. "
            "Each core of the split has memory for 75 % of what the whole step takes, so that "
            "neither holds it; the other ways have no limit. *Load* is the number of processes "
            "that wanted a core: above 2 the machine was not quiet, and only ways of one row can "
            "be compared.",
            tables.training_loops,
        ),
        Section(
            "Decoders with a cache", "decoders",
            "python -m benchmarks.decoders --runtime RUNTIME --results docs/results/decoders.json",
            "Decoders of random weights within memory limits that no core satisfies alone. Each "
            "decodes 200 tokens in ten placements: one of `auto`, and nine of contiguous pieces "
            "of random lengths. Tokens are compared with those of the unsplit model in PyTorch, "
            "and with the choice of the unsplit plan in the same runtime. Seconds are of one "
            "token. The error is |predicted / measured - 1|. Costs are measured a minute before "
            "the first token, and this machine changes its speed by a third within seconds. So "
            "the plan with all units on one core computes the tokens, too, in turn with the "
            "split: those of a second, 20 at least. *Unsplit* is the range of its medians: one "
            "plan, measured with each placement. *At a steady speed* is the median error if "
            "predictions are scaled by how much slower this plan is than right after its costs "
            "were measured. The last column is the median error of the predicted ratio of the "
            "two, which no drift changes. With 32 layers, a near tie at one token makes OpenVINO "
            "choose otherwise than PyTorch, split or not. Behind a processor are its family and "
            "model.",
            tables.decoders,
        ),
        Section(
            "Report page", "report-page", "python -m benchmarks.measure_report_page",
            "Drawn by a browser without a display.",
            tables.report_page,
        ),
    )),
    "language-models": ("Published comparisons of language models", (
        Section(
            "Winners that were found", "llm-ab",
            "placewright bench llm-ab --data COMPARISONS --results docs/results/llm-ab.json",
            "Each comparison has two or more placements that somebody measured. *Predicted* uses "
            "constants fitted without the source of the comparison, *by the catalogue* those that "
            "`place` uses. One constant has seen a source: the seconds of a message on a "
            "Raspberry Pi 5 come from the pull request of `dllama-64`, and those of a Raspberry "
            "Pi 4 are 2.5 times as long. The error of ratios is of the logarithm of one speed over "
            "another.",
            tables.ab_winners,
        ),
        Section(
            "Errors of speeds", "llm-ab", "placewright bench llm-ab",
            "Errors are of the logarithm of tokens per second, by constants that have not seen the "
            "source. The factors are fitted to all sources, and change what the catalogue states.",
            tables.ab_engines,
        ),
        Section(
            "Each comparison", "llm-ab", "placewright bench llm-ab",
            "Predicted tokens per second of each option, whose best is first. The limit is proven "
            "for these costs: no placement on these devices has more. It covers placements that "
            "were measured, the devices alone, and mixtures by module.",
            tables.ab_rows,
        ),
        Section(
            "Comparisons that are not scored", "llm-ab", "placewright bench llm-ab",
            "Nobody states where their modules lie, or the model cannot tell options apart.",
            tables.ab_left_out,
        ),
    )),
    "language-runs": ("Language models read, planned and run", (
        Section(
            "Configurations that are read", "language-plans", "python -m benchmarks.language_plans",
            "The command `graph` with `q4_k_m` weights, imports among its seconds. Configurations "
            "with the name of a type have the sizes that `transformers` gives it. It counts the "
            "parameters in a process of its own.",
            tables.language_readings,
        ),
        Section(
            "Plans of large models", "language-plans", "python -m benchmarks.language_plans",
            "The command `place` without a budget. No placement that llama.cpp can express is "
            "faster by more than the gap, for these costs.",
            tables.language_plans,
        ),
        Section(
            "Inputs of DistilP", "distilp", "python -m benchmarks.distilp CHECKOUT",
            "Published profiles of machines and models, and the answer of DistilP, a solver for "
            "layers on machines that read from their disks what their memory does not hold. Its "
            "costs of one round of layers are a problem for us, too, and both answers must take "
            "as long. With more rounds it overlaps reading with the rounds of other machines, "
            "which `sequential` does not have. Its best answer of all is in the last column.",
            tables.distilp,
        ),
        Section(
            "Errors of predictions", "language-models", "python -m benchmarks.language_models",
            "Two servers of llama.cpp and the host are the devices, with one thread each. The "
            "client and the first server stay on one core, the second server on another, and "
            "weights lie in huge pages. The devices are measured shortly before the rows of a "
            "model. The error is |predicted / measured - 1|, and medians are over placements. "
            "Rounds measured each placement, and the column behind each error has the median of "
            "the difference between the slowest and the fastest. `half` and `large-experts` have "
            "one round each.",
            tables.language_errors,
        ),
        Section(
            "Placements", "language-models", "python -m benchmarks.language_models",
            "Drawn placements, and the plan of a search within limits. Places are layers, moved "
            "tensors, and bytes of weights and caches of each memory, by the engine's own print. "
            "Tokens are greedy ones behind three prompts. In unequal pairs the second server is "
            "built without AVX2. It may round differently, and the models have random weights, "
            "so that a near tie may go another way; it does for the whole model on that server, "
            "too, placement `alone`. Buffers are those for activations, estimated without asking "
            "the engine.",
            tables.language_models,
        ),
        Section(
            "Plans beside simpler ways", "language-models", "python -m benchmarks.language_models",
            "Each memory holds at most 70 % of the model, so that no device holds it alone.",
            tables.language_contenders,
        ),
        Section(
            "A GPU and its processor", "language-cards",
            "python -m benchmarks.language_models --cards --placements 6 --rounds 2",
            "The first run of the engine on a GPU, with weights of two other models in part on its "
            "processor. Tensors lie where the plans have them. Of 792 greedy tokens one equals "
            "that of the model on the processor alone, which is a fault of these two models: rows "
            "of their output repeat after 512, so that each token has 62 of the same score. "
            "Kernels without AVX2 on the processor, too, then begin with another token, which is "
            "the same modulo 512, and with the same token once the rows differ. The benchmark "
            "writes such models now; the GPU has not run them yet. "
            "Buffers are estimated by the present version.",
            tables.language_errors,
        ),
        Section(
            "Plans on a GPU and its processor", "language-cards",
            "python -m benchmarks.language_models --cards --placements 6 --rounds 2",
            "The GPU holds at most half of the model. The processor alone is faster than "
            "predicted: without a GPU the engine packs its weights again, which the devices were "
            "not measured with.",
            tables.language_contenders,
        ),
    )),
    "robustness": ("Robustness", (
        Section(
            "Mutated files", "fuzz", "make fuzz",
            "Files of each format with random changes. Anything else would be an exception of "
            "another type, a crash, a hang, a file that was written, or a new process.",
            tables.fuzz,
        ),
        Section(
            "Files made to do harm", "refusals", "python -m benchmarks.refusals",
            "Each file is given to a command of its own, which must refuse it in one line of at "
            "most 300 characters, within 5 s and 1 GiB.",
            tables.refusals,
        ),
        Section(
            "The same with an early version", "refusals-a6355c6", "python -m benchmarks.refusals",
            "The files that were known at commit a6355c6, with the code of that commit.",
            tables.refusals,
        ),
        Section(
            "Killed commands", "kill-sweep", "python -m benchmarks.kill_sweep",
            "Signals at random moments. A fault is a damaged or lost file, a process that goes "
            "on, or a command that fails when it is run again.",
            tables.kill_sweep,
        ),
        Section(
            "An hour of runs and placements", "endurance", "python -m benchmarks.endurance",
            "Growth compares the highest values of the second half with those of the second "
            "quarter.",
            tables.endurance,
        ),
        Section(
            "First minutes outside the repository", "install-outside",
            "pytest -m slow tests/test_outside_the_repository.py",
            "With a wheel, in an empty folder.",
            tables.install,
        ),
    )),
}  # fmt: skip


def table_pages(folder: Path) -> dict[str, str]:
    """Name and Markdown of each page of tables that is made from rows in `folder`."""
    return {f"{name}.md": page(title, folder, parts) for name, (title, parts) in PAGES.items()}


def report_pages(folder: Path) -> dict[str, str]:
    """The same of each page that is a report of a suite, or a template with values from rows."""
    return suite_pages(folder) | written_pages(folder)


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0]) if arguments else Path("docs/results")
    note_changes(folder)
    for name, text in (table_pages(folder) | report_pages(folder)).items():
        (folder / name).write_text(text)
    draw_results(folder, folder)


if __name__ == "__main__":
    main(sys.argv[1:])
