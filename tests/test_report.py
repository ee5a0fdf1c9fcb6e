import pytest

from common.options import RunConfig
from common.report import report, summary
from tests.factories import make_result


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


def test_ranks_without_a_result_write_nothing(tmp_path, capsys):
    report(RunConfig("native", "ddp", output=tmp_path / "result.json"), None)
    assert (list(tmp_path.iterdir()), capsys.readouterr().out) == ([], "")


def test_without_an_output_the_summary_is_all(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report(RunConfig("native", "ddp"), make_result())
    assert (list(tmp_path.iterdir()), capsys.readouterr().out) == ([], summary(make_result()) + "\n")


def test_the_result_is_written_before_the_summary_claims_anything(tmp_path, capsys):
    path = tmp_path / "missing" / "result.json"
    with pytest.raises(Exception, match="could not be written"):
        report(RunConfig("native", "ddp", output=path), make_result())
    assert capsys.readouterr().out == ""
