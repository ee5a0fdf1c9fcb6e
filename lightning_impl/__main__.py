"""Train the synthetic transformer with Lightning. Read beside native/__main__.py: what is gone is gone visibly.

torchrun --standalone --nproc-per-node=2 -m lightning_impl --strategy ddp --preset tiny
python -m lightning_impl --devices 2 --strategy ddp --preset tiny
"""

from common.errors import run_main
from common.launch import detect_launch
from common.network import check_network
from common.options import check_output, parse_options


def main() -> int:
    """Run once, as one rank of many."""
    config = parse_options("lightning")
    launch = detect_launch(config)
    check_network(config, launch)
    check_output(config, launch.rank)

    # torch and lightning take seconds to import; they wait until the call is known to be right.
    from common.environment import choose_device, limit_cpu_threads
    from common.precision import resolve_precision
    from common.recorder import RunRecorder
    from lightning_impl.strategy import destroy_process_group
    from lightning_impl.train import train

    limit_cpu_threads(launch)
    device = choose_device(config, launch)
    precision = resolve_precision(config.precision, device)

    recorder = RunRecorder(config, launch, device, precision)
    with recorder.recording_outcome():
        recorder.watch_calls()
        recorder.meet()
        train(config, launch, device, precision, recorder)
        destroy_process_group(device)
    return recorder.report()


if __name__ == "__main__":
    run_main(main, "python -m lightning_impl")
