import pytest

from common.options import RunConfig
from common.report import report, summary
from tests.factories import OUT_OF_MEMORY, make_result


@pytest.mark.parametrize("implementation", ["native", "lightning"])
def test_the_summary_fits_80_columns(implementation):
    text = summary(
        make_result(
            implementation,
            workload__strategy="fsdp2",
            workload__fsdp_wrap="block",
            workload__world_size=1024,
            timing__tokens_per_second=123456789.123,
        )
    )
    assert max(len(line) for line in text.splitlines()) <= 80


def test_the_summary_shows_the_final_loss_to_the_last_digit():
    assert "final_loss_mean 0.30000000000000004" in summary(make_result(correctness__final_loss_mean=0.1 + 0.2))


def test_the_summary_of_a_cpu_run_shows_no_peak_rather_than_zero():
    assert "peak_allocated_gib n/a" in summary(make_result(memory__peak_allocated_gib=None))


def test_the_summary_names_the_wrap_of_fsdp2():
    assert summary(make_result(workload__strategy="fsdp2", workload__fsdp_wrap="root")).startswith(
        "native fsdp2 (root wrap), tiny"
    )


def test_the_summary_of_a_run_out_of_memory_says_how_it_ended_and_no_number():
    text = summary(make_result(**OUT_OF_MEMORY))
    assert "  out_of_memory in step 1 (warmup) on rank 1: asked for 2.00 GiB, free were 1.50 GiB" in text
    assert "per_second" not in text


def test_a_run_out_of_memory_whose_message_names_no_sizes_shows_the_message():
    changes = {"outcome__requested_gib": None, "outcome__free_gib": None, "outcome__message": "no luck"}
    assert "on rank 1: no luck" in summary(make_result(**OUT_OF_MEMORY | changes))


def test_the_summary_of_a_run_that_diverged_says_why():
    changes = {"outcome__status": "diverged", "outcome__phase": "window", "outcome__step": 4, "outcome__rank": 0}
    text = summary(make_result(**changes, outcome__message="the loss of step 4 on rank 0 is nan"))
    assert "  diverged in step 4 (window) on rank 0: the loss of step 4 on rank 0 is nan" in text


def test_without_an_output_the_summary_is_all(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report(RunConfig("native", "ddp"), make_result())
    assert (list(tmp_path.iterdir()), capsys.readouterr().out) == ([], summary(make_result()) + "\n")


def test_the_result_is_written_before_the_summary_claims_anything(tmp_path, capsys):
    path = tmp_path / "missing" / "result.json"
    with pytest.raises(Exception, match="could not be written"):
        report(RunConfig("native", "ddp", output=path), make_result())
    assert capsys.readouterr().out == ""
