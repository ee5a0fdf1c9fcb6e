"""The command line of the comparison: run the matrix, show results, say who is responsible for what."""

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import RunError, missing_package
from common.options import (
    LAUNCHERS,
    STRATEGIES,
    OneLineParser,
    RunConfig,
    add_timeout_option,
    add_workload_options,
    integer_of_at_least,
)
from common.text import plain
from comparison.exercise.options import add_exercise_options
from comparison.sbatch import add_sbatch_options

if TYPE_CHECKING:
    from comparison.loading import Run
    from comparison.pairing import Pairing

COMPARED, FAILED, USAGE, NOT_COMPARABLE = 0, 1, 2, 3
INTERRUPTED, READER_LEFT = 130, 141
"""As a shell reports SIGINT and SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return the exit code: 0 compared, 1 failed, 2 usage, 3 not comparable."""
    argv = sys.argv[1:] if argv is None else list(argv)
    arguments = build_parser().parse_args(argv)
    arguments.argv = argv[1:]
    # Both ways of stopping us take the same path, which ends every process of a run.
    # SIGINT too: it is ignored by whatever a script starts in the background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file name may hold what the terminal's encoding does not
    try:
        code = arguments.command(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read this, such as `head`, has seen enough
        end_output()
        return READER_LEFT
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or error.filename is not None:
            raise
        report_error(RunError(f"the output could not be written: {error.strerror}"))
        end_output()
        return FAILED
    except ModuleNotFoundError as error:
        return report_error(missing_package(error))
    except RunError as error:
        return report_error(error)
    except KeyboardInterrupt:
        print("compare.py: interrupted; no process of the run is left", file=sys.stderr)
        return INTERRUPTED


def report_error(error: RunError) -> int:
    """Print an error in one line and return its exit code."""
    print("\n".join(plain(line) for line in f"compare.py: error: {error}".splitlines()), file=sys.stderr)
    return error.exit_code


def end_output() -> None:
    """Let nothing more be written, so that what the interpreter still holds does not raise again when it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all subcommands."""
    parser = OneLineParser(prog="compare.py", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="{run,sbatch,show,responsibilities,exercise}")

    run = commands.add_parser("run", help="run both implementations in turn, then show the tables", allow_abbrev=False)
    add_run_options(run)
    run.set_defaults(command=run_matrix)

    batch = commands.add_parser("sbatch", help="print or submit a Slurm job that does `run`", allow_abbrev=False)
    add_sbatch_options(batch)
    add_run_options(batch)
    batch.set_defaults(command=write_job)

    show = commands.add_parser("show", help="pair result files and show the tables", allow_abbrev=False)
    show.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="result files, or folders of them")
    add_show_options(show, formats=("table", "markdown", "json", "csv"))
    show.add_argument("--force", action="store_true", help="show numbers of runs that are not comparable, too")
    show.add_argument("--scaling", action="store_true",
                      help="show how the time of a step changes with the number of ranks, and no pairs")  # fmt: skip
    show.set_defaults(command=show_results)

    duties = commands.add_parser("responsibilities", help="show who does what on each side, and where in the source",
                                 allow_abbrev=False)  # fmt: skip
    duties.add_argument("paths", nargs="*", type=Path, metavar="PATH",
                        help="result files, or folders of them, as evidence of who was seen doing it")  # fmt: skip
    duties.add_argument("--format", choices=("table", "markdown", "json"), default="table", help="default: table")
    duties.add_argument("--code", metavar="NAME",
                        help="show one duty's code on both sides, such as zero_grad; all: every duty's")  # fmt: skip
    duties.set_defaults(command=show_responsibilities)

    exercise = commands.add_parser("exercise", help="predict, measure, compare and explain: a workbook",
                                   allow_abbrev=False)  # fmt: skip
    add_exercise_options(exercise)
    exercise.set_defaults(command=do_exercise)
    return parser


def add_run_options(run: argparse.ArgumentParser) -> None:
    """Add the options of ``run``, which ``sbatch`` passes on."""
    matrix = run.add_argument_group("matrix")
    matrix.add_argument("--strategy", nargs="+", choices=STRATEGIES, default=list(STRATEGIES), metavar="{ddp,fsdp2}",
                        help="one or both (default: both)")  # fmt: skip
    matrix.add_argument("--repeats", type=integer_of_at_least(1), default=3, metavar="N",
                        help="runs of each implementation and strategy (default: 3)")  # fmt: skip
    matrix.add_argument("--control", action="store_true",
                        help="run native twice as often and compare it with itself: what noise does")  # fmt: skip
    matrix.add_argument("--attribute", action="store_true",
                        help="also run each side with its switches, and show what each choice costs")  # fmt: skip
    matrix.add_argument("--nproc-per-node", type=integer_of_at_least(1), metavar="N",
                        help="ranks a node (default: Slurm's tasks, all visible GPUs, or 2 on CPUs)")  # fmt: skip
    matrix.add_argument("--launcher", choices=LAUNCHERS,
                        help="what starts the ranks (default: what the surroundings call for)")  # fmt: skip
    matrix.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto",
                        help="auto takes CUDA where there is a GPU (default: auto)")  # fmt: skip
    matrix.add_argument("--output-dir", type=Path, metavar="PATH",
                        help="new or empty folder for results and logs (default: one under results/)")  # fmt: skip
    add_timeout_option(matrix)
    add_workload_options(run, default_preset=None)
    add_show_options(run.add_argument_group("output"))


def add_show_options(parser: argparse._ActionsContainer, formats: Sequence[str] = ("table",)) -> None:
    """Add the options of everything that ends with tables."""
    if len(formats) > 1:
        parser.add_argument("--format", choices=formats, default="table", help="default: table")
    parser.add_argument("--no-responsibilities", dest="responsibilities", action="store_false",
                        help="leave out the table of who does what")  # fmt: skip


def run_matrix(arguments: argparse.Namespace) -> int:
    """Run every cell of the matrix in its own process group, then show what came out."""
    from comparison.formatting import counted
    from comparison.launchers import check_meeting_point, choose_launcher, choose_ranks
    from comparison.matrix import choose_variants, execute, plan
    from comparison.progress import run_all
    from comparison.terminal import make_console

    launcher = choose_launcher(arguments.launcher, timeout_seconds=arguments.timeout_seconds)
    check_meeting_point(launcher)
    device, processes = choose_ranks(launcher, arguments.device, arguments.nproc_per_node)
    preset = arguments.preset or ("small" if device == "cuda" else "tiny")
    options = workload_arguments(arguments, preset, device, launcher.nodes * processes)
    options += ["--timeout-seconds", str(arguments.timeout_seconds)]
    folder = new_folder(arguments.output_dir)
    console = make_console()
    strategies = list(dict.fromkeys(arguments.strategy))
    variants, left_out = {}, []
    if arguments.attribute:
        precision = "fp32" if (arguments.precision, device) == ("auto", "cpu") else arguments.precision
        variants, left_out = choose_variants(strategies, precision, launcher.nodes * processes)
    runs = plan(strategies, arguments.repeats, options, arguments.control, variants)
    ranks = counted(processes, "rank") + f" on each of {launcher.nodes} nodes" * (launcher.nodes > 1)
    console.print(f"started by {launcher.name}: {launcher.reason}", markup=False)
    console.print(
        f"{counted(len(runs), 'run')} of {ranks} on {device}, preset {preset}; results in {folder}", markup=False
    )
    for line in left_out:
        console.print(line, markup=False)
    finished = run_all(runs, partial(execute, launcher=launcher, processes=processes, folder=folder), console)

    failed = sum(not run.succeeded for run in finished)
    outputs = [run.output for run in finished if run.succeeded]
    shown = show_paths(outputs, "table", arguments.responsibilities, in_short=True)
    if failed:
        print(f"\n{failed} of {len(finished)} runs failed; their output is in {folder / 'logs'}", file=sys.stderr)
    print(f"\nShow this again with: python compare.py show {folder}")
    return FAILED if failed else shown


def write_job(arguments: argparse.Namespace) -> int:
    """Print a batch script that does ``run``, or submit it."""
    from comparison.sbatch import PROJECT, job_script, submit

    defaults = argparse.ArgumentParser(add_help=False)
    add_run_options(defaults)
    script = job_script(arguments, vars(defaults.parse_args([])), arguments.argv)
    if not arguments.submit:
        print(script, end="")
        return COMPARED
    job = submit(script)
    print(f"job {job} submitted; its output will be in slurm-{job}.out, its results in "
          f"{arguments.output_dir or PROJECT / 'results' / f'slurm-{job}'}")  # fmt: skip
    return COMPARED


def workload_arguments(arguments: argparse.Namespace, preset: str, device: str, processes: int) -> list[str]:
    """Return the options that every run of the matrix gets.

    Raises:
        RunError: the ranks do not divide the global batch.
    """
    config = RunConfig("native", "ddp", preset, batch_size_per_device=arguments.batch_size_per_device,
                       global_batch_size=arguments.global_batch_size)  # fmt: skip
    config.local_batch_size(processes)
    options = ["--preset", preset, "--device", device]
    for name in (
        "fsdp_wrap",
        "batch_size_per_device",
        "global_batch_size",
        "warmup_steps",
        "steps",
        "precision",
        "seed",
    ):
        value = getattr(arguments, name)
        if value is not None:
            options += [f"--{name.replace('_', '-')}", str(value)]
    return options + ["--deterministic"] * arguments.deterministic


def new_folder(wanted: Path | None) -> Path:
    """Create the folder for a matrix.

    Raises:
        RunError: it holds files already, or cannot be created.
    """
    folder = wanted or Path("results") / datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunError(f"--output-dir {folder} is not empty; name a new folder")
        (folder / "logs").mkdir()
    except OSError as error:
        raise RunError(
            f"--output-dir {folder} cannot be created ({error.strerror}); name a folder you may write to"
        ) from None
    return folder


def show_results(arguments: argparse.Namespace) -> int:
    """Show result files: paired, or over numbers of ranks."""
    if arguments.scaling and arguments.force:
        raise RunError("--scaling shows no runs that are not comparable; leave --force out, or --scaling")
    if arguments.scaling:
        return show_scaling(arguments.paths, arguments.format)
    return show_paths(arguments.paths, arguments.format, arguments.responsibilities, force=arguments.force)


def show_paths(
    paths: Sequence[Path], style: str, responsibilities: bool, in_short: bool = False, force: bool = False
) -> int:
    """Pair the results among ``paths``, print them, and return the exit code."""
    from comparison.pairing import pair_runs

    runs, problems = load_and_report(paths)
    pairing = pair_runs(runs)
    if style == "table":
        print_tables(pairing, responsibilities, in_short, force)
    else:
        print_document(pairing, style, responsibilities, force)
    wrong = any(run.went_wrong for run in runs)
    if problems or wrong or not runs:
        return FAILED
    comparable = pairing.pairs or (force and pairing.mismatches)
    return COMPARED if comparable and (force or not pairing.mismatches) else NOT_COMPARABLE


def show_scaling(paths: Sequence[Path], style: str) -> int:
    """Print the results among ``paths`` over numbers of ranks, and return the exit code."""
    from comparison.scaling import scale_runs

    runs, problems = load_and_report(paths)
    scaled = scale_runs(runs)
    if style == "table":
        from comparison.tables import print_scalings
        from comparison.terminal import make_console

        print_scalings(make_console(), scaled)
    else:
        from comparison.export import scalings_as_csv, scalings_as_json, scalings_as_markdown

        convert = {"markdown": scalings_as_markdown, "json": scalings_as_json, "csv": scalings_as_csv}[style]
        print(convert(scaled), end="")
    if problems or not runs or any(run.went_wrong for run in runs):
        return FAILED
    return COMPARED if scaled.scalings and not scaled.mismatches else NOT_COMPARABLE


def load_and_report(paths: Sequence[Path]) -> tuple[list["Run"], list[str]]:
    """Return the runs among ``paths``, and what could not be read, which is printed too."""
    from comparison.loading import load_runs

    runs, problems = load_runs(paths)
    for problem in problems:
        print(f"compare.py: {plain(problem)}", file=sys.stderr)
    return runs, problems


def print_tables(pairing: "Pairing", responsibilities: bool, in_short: bool, force: bool) -> None:
    """Print a pairing for a person."""
    from comparison.tables import print_in_short, print_pairing
    from comparison.terminal import make_console

    console = make_console()
    print_pairing(console, pairing, force)
    if responsibilities:
        from comparison.responsibility_table import render

        console.print()
        render(console, brief=True, results=[run.result for run in pairing.runs()])
    if in_short:
        print_in_short(console, pairing)


def print_document(pairing: "Pairing", style: str, responsibilities: bool, force: bool) -> None:
    """Print a pairing for another program or a document."""
    from comparison.export import as_csv, as_json, as_markdown

    if style == "csv":
        print(as_csv(pairing, force=force), end="")
    else:
        convert = as_json if style == "json" else as_markdown
        print(convert(pairing, responsibilities=responsibilities, force=force), end="")


def show_responsibilities(arguments: argparse.Namespace) -> int:
    """Show who does what on each side, with places found in the live source, and what runs have seen of it."""
    from comparison import responsibility_table

    if arguments.code is not None:
        if arguments.paths:
            raise RunError(f"--code shows source, which {arguments.paths[0]} is no part of; leave the path out")
        return show_code(arguments.code, arguments.format)
    runs, problems = load_and_report(arguments.paths)
    results = [run.result for run in runs]
    if arguments.format == "json":
        import json

        from comparison import plumbing

        document = {"plumbing": plumbing.to_json_data(), "duties": responsibility_table.to_json_data(results)}
        print(json.dumps(document, indent=2))
    elif arguments.format == "markdown":
        print(responsibility_table.to_markdown(results))
    else:
        from comparison.terminal import make_console

        responsibility_table.render(make_console(), results=results)
    if wrong := responsibility_table.contradicted(results):
        print(f"compare.py: the catalogue is contradicted by these runs in: {', '.join(wrong)}", file=sys.stderr)
    return FAILED if problems or wrong else COMPARED


def do_exercise(arguments: argparse.Namespace) -> int:
    """Lead through the workbook, print it as a handout, or sum up a class."""
    from comparison.exercise.command import run

    return run(arguments, workload_arguments)


def show_code(name: str, style: str) -> int:
    """Show the code of one duty, or of all, on both sides."""
    from comparison import code_view

    duties = code_view.find_duties(name)
    if style == "json":
        import json

        print(json.dumps(code_view.to_json_data(duties), indent=2))
    elif style == "markdown":
        print(code_view.to_markdown(duties))
    else:
        from comparison.terminal import make_console

        code_view.render(make_console(), duties)
    return COMPARED


if __name__ == "__main__":
    sys.exit(main())
