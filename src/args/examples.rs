//! What help texts show beneath the options: command lines that can be typed as they stand.

use clap::Command;

/// A command below `baton`, and lines that show its use.
const EXAMPLES: [(&str, &[&str]); 18] = [
    (
        "",
        &[
            "baton demo",
            "baton config check cluster.toml",
            "baton scheduler --config cluster.toml",
            "baton backend --config cluster.toml --name gpu-a",
            "baton status --config cluster.toml --watch",
            "baton load --config cluster.toml --rate resnet50=200",
        ],
    ),
    ("scheduler", &["baton scheduler --config cluster.toml"]),
    ("backend", &["baton backend --config cluster.toml --name gpu-a"]),
    (
        "gateway",
        &["baton gateway --config cluster.toml --http 0.0.0.0:8000 --metrics 127.0.0.1:8005"],
    ),
    (
        "status",
        &[
            "baton status --config cluster.toml --watch",
            "baton status --scheduler 127.0.0.1:7700 --json",
        ],
    ),
    (
        "model add",
        &[
            "baton model add encoder.onnx --name encoder --slo-ms 50 dims={seq=128} --config cluster.toml",
            "baton model add alpha_ms=3 beta_ms=9 --name big --slo-ms 80 --config cluster.toml",
        ],
    ),
    (
        "model set",
        &[
            "baton model set encoder slo_ms=80 max_rps=500 --config cluster.toml",
            "baton model set encoder file=encoder-2.onnx dims={seq=128} --config cluster.toml",
        ],
    ),
    (
        "profile",
        &[
            "baton profile encoder.onnx dims={seq=128} --batch-max 32",
            "baton profile --config cluster.toml --model resnet50",
        ],
    ),
    (
        "load",
        &[
            "baton load --config cluster.toml --rate resnet50=200 --rate bert=50 --seconds 30",
            "baton load --config cluster.toml --rate resnet50=200 --goodput 0.99",
            "baton load --url grpc://127.0.0.1:8001 --rate digits=500 --deadline-ms 50 --json",
        ],
    ),
    (
        "explain",
        &[
            "baton load --config cluster.toml --seconds 10 --outcomes bad.jsonl",
            "baton explain 4294967297 --outcomes bad.jsonl",
        ],
    ),
    (
        "sim run",
        &[
            "baton sim run --scenario scenarios/table4-resnet50.toml --policy baton --rate 5000",
            "baton sim run --cluster cluster.toml --policy baton --rate 200 --seconds 60",
        ],
    ),
    (
        "sim goodput",
        &["baton sim goodput --scenario scenarios/bursts-bert.toml --policy baton --json"],
    ),
    (
        "sim sweep",
        &[
            "baton sim sweep --scenario scenarios/table4-resnet50.toml --policy baton --policy eager --rates 0.2:2:10x",
        ],
    ),
    (
        "sim explain",
        &[
            "baton sim explain --scenario scenarios/table4-resnet50.toml --policy baton --rate 5400 --dropped 3",
        ],
    ),
    ("sim fuzz", &["baton sim fuzz --count 20 --seed 1", "baton sim fuzz --seed 1 --only 3"]),
    ("reproduce", &["baton reproduce table4 --brief --out figures"]),
    ("bench path", &["baton bench path --rate 1000,10000 --plot path.svg"]),
    ("bench sched", &["baton bench sched --seconds 2", "baton bench sched --overload 2"]),
];

/// The command with its examples, and those of the commands below it. `path` is its own.
pub(super) fn shown(command: Command, path: &str) -> Command {
    let command = match EXAMPLES.iter().find(|(of, _)| *of == path) {
        Some((_, lines)) => command.after_help(format!("Examples:\n  {}", lines.join("\n  "))),
        None => command,
    };
    command.mut_subcommands(|below| {
        let path = format!("{path} {}", below.get_name());
        shown(below, path.trim_start())
    })
}

/// Lines that show the use of the command at this path.
pub(super) fn of(path: &str) -> Vec<String> {
    let lines = EXAMPLES.iter().find(|(of, _)| *of == path).map_or(&[][..], |(_, lines)| lines);
    lines.iter().map(|line| format!("for example: {line}")).collect()
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory as _, Parser as _};

    use super::*;
    use crate::args::Args;

    #[test]
    fn every_example_is_a_command_line_and_every_command_of_one_is_there() {
        for (path, lines) in EXAMPLES {
            for line in lines {
                let words = line.split(' ');
                assert!(Args::try_parse_from(words).is_ok(), "{line}");
            }
            let mut command = shown(Args::command(), "");
            for name in path.split_whitespace() {
                command = command.find_subcommand(name).unwrap_or_else(|| panic!("{path}")).clone();
            }
            let help = command.render_help().to_string();
            assert!(lines.iter().all(|line| help.contains(line)), "{path}: {help}");
        }
    }
}
