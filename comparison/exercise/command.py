"""``compare.py exercise``: leads through the workbook, prints it as a handout, or sums up a class."""

import argparse
import getpass
import shlex
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from common.errors import RunError
from comparison.exercise.answers import AnswerBook, default_path, read_answers
from comparison.exercise.explanations import say
from comparison.exercise.measured import Measured
from comparison.exercise.questions import Task
from comparison.exercise.runner import Options, Runner
from comparison.exercise.session import Ended, Session
from comparison.exercise.summary import print_summary, read_class
from comparison.exercise.tasks import tasks
from comparison.formatting import plain
from comparison.terminal import make_console

DONE, FAILED, INTERRUPTED = 0, 1, 130
DEFAULT_RESULTS = Path("results") / "exercise"


def run(arguments: argparse.Namespace, options: Options) -> int:
    """Lead through the exercise, print it as a handout, or sum up a class; return the exit code."""
    console = make_console()
    if arguments.summary is not None:
        books, problems = read_class(arguments.summary)
        print_summary(console, books)
        for problem in problems:
            print(f"compare.py: {plain(problem)}", file=sys.stderr)
        return FAILED if problems else DONE
    return _hand_out(arguments, console, options) if arguments.non_interactive else _lead(arguments, console, options)


def _lead(arguments: argparse.Namespace, console: Console, options: Options) -> int:
    name = arguments.name or _login()
    path = arguments.answers or default_path(name)
    before = read_answers(path)
    folder = arguments.folder or (Path(before.results) if before and before.results else DEFAULT_RESULTS)
    if before and before.results and before.results != str(folder) and any(a.measured for a in before.answers.values()):
        raise RunError(
            f"the answers in {path} are about {before.results}, not about {folder}; leave the folder out to go on, "
            "or keep new answers elsewhere with --answers PATH"
        )
    runner = Runner(arguments, folder, options)
    book = before or AnswerBook(name=name, results=None, answers={})
    session = Session(console, book.model_copy(update={"results": str(folder)}), path)
    session.keep()
    again = shlex.join(["python", "compare.py", "exercise", *arguments.argv])
    try:
        _go_through(session, runner, path)
    except Ended:
        _say_goodbye(console, session, path, again)
        return DONE
    except KeyboardInterrupt:
        console.print()
        _say_goodbye(console, session, path, again)
        return INTERRUPTED
    say(console, f"That was all. Your answers are in {path}; the results are in {folder}.")
    return DONE


def _go_through(session: Session, runner: Runner, path: Path) -> None:
    """Do all tasks that are not done yet; if all are, show them again."""
    console, todo = session.console, list(tasks())
    console.print(Text("Native PyTorch and Lightning: predict, measure, compare, explain", style="bold"))
    where = runner.in_words()
    made = f"The results in {runner.folder} are of" if runner.measured else "Runs will be of"
    say(console, f"{made} {where}. Your answers are kept in {path}. Ctrl-D stops; the same command goes on.")
    if all(session.is_done(task) for task in todo):
        say(console, "You have done all tasks; here they are again.")
    else:
        for task in todo:
            if session.is_done(task):
                console.print(Text(f"Task {task.name}: {task.title} (done)"))
        todo = [task for task in todo if not session.is_done(task)]
        console.print()

    def provide(task: Task) -> Measured | None:
        if task.cells:
            runner.provide(task.cells, console)
        else:
            runner.load()
        return runner.measured

    for task in todo:
        session.do(task, provide)


def _say_goodbye(console: Console, session: Session, path: Path, again: str) -> None:
    total = sum(len(task.questions) for task in tasks())
    say(console, f"Stopped; {len(session.book.answers)} of {total} answers are kept in {path}. Go on with: {again}")


def _hand_out(arguments: argparse.Namespace, console: Console, options: Options) -> int:
    """Print all tasks with everything revealed; answers come from a pipe, if there is one."""
    before = read_answers(arguments.answers) if arguments.answers else None
    folder = arguments.folder or (Path(before.results) if before and before.results else None)
    measured = None
    if folder is not None:
        runner = Runner(arguments, folder, options)
        measured = runner.measured
        for problem in runner.problems:
            print(f"compare.py: {plain(problem)}", file=sys.stderr)
        if measured is None:
            raise RunError(f"{folder}: no results in this folder; make some with: python compare.py run")
    book = before or AnswerBook(name=arguments.name or _login(), results=str(folder) if folder else None, answers={})
    session = Session(console, book, arguments.answers, reads=not sys.stdin.isatty(), waits=False)
    session.on_end = lambda: setattr(session, "reads", False)
    if measured is None:
        say(console, "Without a folder of results there is nothing to compare predictions with.")
    for task in tasks():
        session.do(task, lambda _task: measured)
    return DONE


def _login() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "student"
