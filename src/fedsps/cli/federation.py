"""`fedsps federation`: a real Flower federation on this machine, as processes.

The commands are thin: what they do is in `fedsps.deploy`. Exit code 1 says that a run failed or a process died, 2 that
something was refused, 130 that Ctrl-C stopped it.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fedsps.cli.options import AsJson
from fedsps.cli.terminal import complain, paper, print_json, say, screen
from fedsps.deploy import deployment, programs
from fedsps.errors import ConfigurationError

app = typer.Typer(help="A real Flower federation on this machine, as processes.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option(help="Folder of the federation: its keys, logs and state.")]
Nodes = Annotated[int, typer.Option(help="Nodes, one partition of the data each.", min=1)]
EXAMPLE = Path("examples/flower-digits")


@app.command(name="up")
def up_command(
    nodes: Nodes = 2,
    folder: Folder = Path("federation"),
    port: Annotated[
        int | None, typer.Option(help="Port of the gateway. Default: 9300, or a free one.", min=1, max=65535)
    ] = None,
    node_config: Annotated[
        list[str] | None,
        typer.Option(
            help="More settings for the nodes, 'name=1 other=\"text\"': once for all nodes, or once for each."
        ),
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS, and any node may join.")] = False,
    cold: Annotated[
        bool,
        typer.Option("--cold", help="Start a process for each message, as Flower does: slower, nothing is forked."),
    ] = False,
) -> None:
    """Start a SuperLink, its gateway and its SuperNodes, with TLS and with keys that the nodes must have.

    Runs can be started from this machine alone; nodes can do nothing but take part. All stay up until
    [bold]fedsps federation down[/].
    """
    from fedsps.deploy.up import up

    with screen.status("") as line:
        started = up(folder, nodes, port, node_config or (), not insecure, not cold, line.update)
    if insecure:
        screen.print("note: without TLS and node keys, for tests on this machine only", style="yellow")
    _print_processes(started)
    say(f"{nodes} nodes are online; next: fedsps federation run APP{_option(folder)}")


@app.command(name="run")
def run_command(
    flower_app: Annotated[
        Path | None,
        typer.Argument(metavar="APP", help=f"Folder of a Flower app. Default: {EXAMPLE}.", show_default=False),
    ] = None,
    run_config: Annotated[
        list[str] | None,
        typer.Option(help="Settings of the app, 'name=1 other=\"text\"', may be given several times; or a TOML file."),
    ] = None,
    folder: Folder = Path("federation"),
    timeout: Annotated[float | None, typer.Option(help="Stop the run after so many seconds.", min=1.0)] = None,
) -> None:
    """Run a Flower app on the federation and show what its server says, round by round.

    Exit code 0: the run completed; 1: it failed or was stopped. Ctrl-C stops the run, the federation stays up.
    """
    from fedsps.deploy.run import run

    if flower_app is None and not EXAMPLE.is_dir():
        raise ConfigurationError(f"which app? {EXAMPLE} is not here: name the folder of a Flower app")
    try:
        outcome = run(flower_app or EXAMPLE, folder, run_config or (), timeout, say)
    except KeyboardInterrupt:
        screen.print("run stopped; the federation is up")
        raise typer.Exit(130) from None
    if outcome.status != "completed":
        complain(
            f"run {outcome.run} {outcome.status}: {outcome.details}; all of its output is in {outcome.log}. "
            "A run of fedsps that is given again goes on after its last round"
        )
        raise typer.Exit(1)
    say(f"run {outcome.run} completed")


@app.command(name="status")
def status_command(folder: Folder = Path("federation"), as_json: AsJson = False) -> None:
    """Show the processes, the nodes that are online, and the runs. Exit code 1 if something died."""
    federation = deployment.load(folder.expanduser().resolve())
    if federation is None:
        if as_json:
            print_json({"up": False})
        else:
            say(f"no federation is up in {folder}")
        return
    dead = [process.name for process in federation.processes if not process.is_alive()]
    online: int | None = None
    runs: list[dict[str, Any]] = []
    if federation.processes and "superlink" not in dead:
        online, runs = programs.online(federation.folder), programs.runs(federation.folder)
    if as_json:
        shown = [vars(process) | {"alive": process.is_alive()} for process in federation.processes]
        kept = [{name: run[name] for name in ("run-id", "fab-id", "status", "elapsed")} for run in runs]
        print_json({"up": not dead, "address": federation.address, "processes": shown, "online": online, "runs": kept})
    else:
        _print_processes(federation)
        say("the SuperLink does not run" if online is None else f"{online} of {federation.nodes} nodes are online")
        if runs:
            table = Table("run", "app", "status", "seconds", box=None)
            for run in runs:
                table.add_row(run["run-id"], run["fab-id"], run["status"], f"{run['elapsed']:.0f}")
            paper.print(table)
    if dead or online != federation.nodes:
        if dead:
            complain(f"{', '.join(dead)} died: see the log, then fedsps federation down{_option(folder)} and up again")
        raise typer.Exit(1)


@app.command(name="down")
def down_command(folder: Folder = Path("federation")) -> None:
    """Stop all that `up` started, and nothing else. Keys, logs and the nodes' state stay."""
    from fedsps.deploy.up import down

    with screen.status("stopping"):
        was_up = down(folder)
    say(f"the federation in {folder} is down" if was_up else f"no federation is up in {folder}")


@app.command(name="keys")
def keys_command(
    host: Annotated[
        list[str], typer.Option(help="Name or address of the server, as nodes reach it; the first is used.")
    ],
    nodes: Nodes = 2,
    folder: Folder = Path("federation"),
    port: Annotated[int | None, typer.Option(help="Port of the gateway. Default: 9300.", min=1, max=65535)] = None,
) -> None:
    """Make the keys of a federation on several hosts; print which file goes to which host, and the commands there.

    Keys that are there are kept: call it again with more nodes, or after deleting a pair, for the missing ones.
    """
    from fedsps.deploy.hosts import instructions, write_keys
    from fedsps.deploy.up import PORT

    say(instructions(write_keys(folder, nodes, host), nodes, host[0], port or PORT))


@app.command(name="register")
def register_command(
    key: Annotated[Path, typer.Argument(help="Public key of the node.")],
    partition: Annotated[int, typer.Option(help="Partition that the node will serve: it is held to it.", min=0)],
    connection: Annotated[str, typer.Option(help="Name of the connection to the SuperLink.")] = "hosts",
) -> None:
    """Register the key of a node on several hosts, and note in pins.json which partition it is for.

    Given on the server, in the folder that holds keys.
    """
    if not key.exists():
        raise ConfigurationError(f"{key} is not here: name the public key of a node, such as keys/node-0.pub")
    node = programs.register(Path.cwd(), key, partition, connection)
    say(f"node {node} may serve partition {partition}")


@app.command(name="gateway")
def gateway_command(
    superlink: Annotated[str, typer.Option(help="Where the SuperLink listens, HOST:PORT.")],
    keys: Annotated[Path, typer.Option(help="Folder of the server's keys.")] = Path("keys"),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "0.0.0.0",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 9300,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS.")] = False,
) -> None:
    """The door of a federation: let nodes through to the SuperLink, and refuse everything else.

    It runs until it is stopped. [bold]fedsps federation up[/] starts one; on several hosts the server does.
    """
    from fedsps.deploy.gateway import serve
    from fedsps.deploy.keys import Keys

    serve(host, port, superlink, None if insecure else Keys(keys), lambda line: print(line, flush=True))  # noqa: T201


def _print_processes(federation: deployment.Deployment) -> None:
    """A row for each process: who it is, whether it lives, its CPU seconds, its address and its log."""
    table = Table("who", "pid", "alive", "CPU s", "address", "log", box=None)
    for process in federation.processes:
        alive = process.is_alive()
        seconds = f"{process.cpu_seconds():.1f}" if alive else "-"
        table.add_row(process.name, str(process.pid), "yes" if alive else "no", seconds, process.address, process.log)
    paper.print(table)


def _option(folder: Path) -> str:
    """The option `--folder` for the next command that is suggested; nothing for the usual folder."""
    return "" if folder == Path("federation") else f" --folder {folder}"
