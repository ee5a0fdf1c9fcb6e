"""Train the synthetic transformer in native PyTorch. Read this file from top to bottom and you have seen it all.

torchrun --standalone --nproc-per-node=2 -m native --strategy ddp --preset tiny
"""

from common.errors import run_main
from common.launch import detect_launch
from common.network import check_network
from common.options import check_output, parse_options


def main() -> int:
    """Run once, as one rank of many."""
    config = parse_options("native")
    launch = detect_launch(config)
    check_network(config, launch)
    check_output(config, launch.rank)

    # torch takes seconds to import; it waits until the call is known to be right.
    from common.environment import choose_device, limit_cpu_threads
    from common.precision import resolve_precision
    from common.recorder import RunRecorder
    from native.process_group import bind_device, destroy_process_group, init_process_group
    from native.train import train

    limit_cpu_threads(launch)
    device = choose_device(config, launch)
    precision = resolve_precision(config.precision, device)

    recorder = RunRecorder(config, launch, device, precision)
    with recorder.recording_outcome():
        recorder.watch_calls()
        recorder.meet()
        bind_device(device)
        init_process_group(config, launch, device)
        train(config, launch, device, precision, recorder)
        destroy_process_group(device)
    return recorder.report()


if __name__ == "__main__":
    run_main(main, "python -m native")
