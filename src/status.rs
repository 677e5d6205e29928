//! `baton status`: how a running cluster fares, once or again and again.

use std::error::Error;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_client::Operator;
use baton_client::status::{
    ClusterStatus, EventStatus, GpuStatus, LoadEntry, MemberRole, MemberStatus, ModelCacheStatus,
    ModelStatus,
};
use baton_core::Alternative;
use rustix::termios::tcgetwinsize;

use crate::CommandResult;
use crate::args::StatusArgs;
use crate::model::connect;
use crate::output::{aligned, say};
use crate::process::stop_flag;

/// How long the scheduler may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// LOADs in the text; `--json` has all that the scheduler remembers.
const LOADS_SHOWN: usize = 16;
/// How often the picture is drawn anew.
const REDRAW: Duration = Duration::from_secs(1);
/// How often to look whether a signal has come.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &StatusArgs) -> CommandResult {
    if !args.watch {
        say(&shown(&ask(args)?, args.json))?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_flag()?;
    let mut picture = Picture::new();
    // What is wrong from the beginning is an error; a scheduler that goes may come back.
    let mut status = Ok(ask(args)?);
    while !stop.load(Ordering::Relaxed) {
        let text = match &status {
            Ok(status) => shown(status, args.json),
            Err(problem) if args.json => serde_json::json!({ "error": problem }).to_string(),
            Err(problem) => format!("{problem}\n"),
        };
        picture.draw(&text)?;
        rest(&stop);
        if !stop.load(Ordering::Relaxed) {
            status = ask(args).map_err(|error| error.to_string());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// On a connection of its own each time: the scheduler may be another one by then.
fn ask(args: &StatusArgs) -> Result<ClusterStatus, Box<dyn Error>> {
    let mut operator: Operator = connect(&args.of)?;
    Ok(operator.status(ANSWER)?)
}

fn rest(stop: &AtomicBool) {
    for _ in 0..REDRAW.as_millis() / STOP_INTERVAL.as_millis() {
        if !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(STOP_INTERVAL);
        }
    }
}

fn shown(status: &ClusterStatus, json: bool) -> String {
    if json {
        serde_json::to_string(status).expect("texts and numbers have a JSON form")
    } else {
        as_text(status)
    }
}

/// Where a text takes the place of the one before: a terminal. Elsewhere they follow each other, an empty line between them.
struct Picture {
    is_terminal: bool,
    is_first: bool,
}

/// The cursor to the beginning of the first line.
const HOME: &str = "\x1b[H";
/// Erase to the end of the line.
const END_OF_LINE: &str = "\x1b[K";
/// Erase everything below.
const BELOW: &str = "\x1b[J";
/// Erase everything.
const CLEAR: &str = "\x1b[2J";

impl Picture {
    fn new() -> Self {
        Self { is_terminal: std::io::stdout().is_terminal(), is_first: true }
    }

    fn draw(&mut self, text: &str) -> std::io::Result<()> {
        let is_first = std::mem::take(&mut self.is_first);
        if !self.is_terminal {
            let between = if is_first || text.starts_with('{') { "" } else { "\n" };
            return say(&format!("{between}{}\n", text.trim_end()));
        }
        let size = tcgetwinsize(std::io::stdout()).map(|size| (size.ws_row, size.ws_col));
        let (rows, columns) = size.ok().filter(|size| size.0 > 1).unwrap_or((u16::MAX, u16::MAX));
        let clear = if is_first { CLEAR } else { "" };
        let drawn = fitted(text, rows.into(), columns.into());
        say(&format!("{clear}{HOME}{}{BELOW}\n", drawn.join(&format!("{END_OF_LINE}\n"))))
    }
}

/// The lines that a terminal has room for: one is left for the cursor.
fn fitted(text: &str, rows: usize, columns: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let cut = |line: &&str| line.chars().take(columns).collect::<String>();
    let room = rows - 1;
    if lines.len() <= room {
        return lines.iter().map(cut).collect();
    }
    let mut shown: Vec<String> = lines[..room - 1].iter().map(cut).collect();
    shown.push(cut(&format!(
        "… {} more lines; a larger window shows them",
        lines.len() - room + 1
    )
    .as_str()));
    shown
}

fn as_text(status: &ClusterStatus) -> String {
    let blocks = [
        summary(status),
        table(&MODELS[..model_columns(status)], status.models.iter().map(model_row)),
        table(&VARIANTS, status.models.iter().flat_map(variant_rows)),
        table(&CACHE, status.models.iter().filter_map(cache_row)),
        table(&MEMBERS, status.members.iter().map(member_row)),
        table(&GPUS[..gpu_columns(status)], status.gpus.iter().map(gpu_row)),
        table(&LOADS, status.loads.iter().rev().take(LOADS_SHOWN).map(load_row)),
        table(&EVENTS, status.events.iter().rev().map(event_row)),
    ];
    let blocks: Vec<String> = blocks.into_iter().filter(|block| !block.is_empty()).collect();
    blocks.join("\n\n") + "\n"
}

fn summary(status: &ClusterStatus) -> String {
    let scheduler = &status.scheduler;
    let mut lines = vec![format!(
        "baton {}, policy {}, up {}; figures of the last {:.0} s",
        scheduler.version,
        scheduler.policy,
        span(scheduler.uptime_s),
        scheduler.window_s
    )];
    for of in &status.subclusters {
        let serve = if of.gpus == 1 { "GPU serves" } else { "GPUs serve" };
        let others = of.rules.as_ref().filter(|rules| *rules != Alternative::Own.name());
        let follow = others.map_or(String::new(), |rules| format!("; follows the rules {rules}"));
        lines.push(format!(
            "sub-cluster {}: {} {serve}, {} needed{follow}",
            of.name, of.gpus, of.gpus_needed
        ));
    }
    lines.join("\n")
}

const MODELS: [&str; 10] = [
    "model",
    "sub-cluster",
    "queue",
    "rate/s",
    "bad %",
    "batch",
    "p50 ms",
    "p99 ms",
    "SLO ms",
    "over quota/s",
];
const VARIANTS: [&str; 6] = ["model", "variant", "accuracy %", "largest ms", "tasks", "batch"];
const CACHE: [&str; 6] =
    ["model", "copies", "cold tasks", "in time", "failed loads", "the last failed"];
const MEMBERS: [&str; 5] = ["member", "address", "for", "state", "tasks"];
const GPUS: [&str; 7] =
    ["slot", "backend", "sub-cluster", "busy %", "free pages", "loads", "loader busy %"];
const LOADS: [&str; 8] =
    ["ago", "load of", "slot", "why", "victims", "planned ms", "ended ms", "outcome"];
const EVENTS: [&str; 4] = ["ago", "event", "of", "why"];

/// The last column is there while a quota refuses something.
fn model_columns(status: &ClusterStatus) -> usize {
    let is_refused = status.models.iter().any(|model| model.refused_rps > 0.0);
    MODELS.len() - usize::from(!is_refused)
}

/// The columns behind `busy %` are of weights caches.
fn gpu_columns(status: &ClusterStatus) -> usize {
    let has_cache = status.gpus.iter().any(|gpu| gpu.pages_free.is_some());
    if has_cache { GPUS.len() } else { 4 }
}

/// As many columns as the head has. Nothing without rows.
fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head: Vec<String> = head.iter().map(|&title| title.to_owned()).collect();
    let rows = rows.map(|row| row.into_iter().take(head.len()).collect());
    let rows: Vec<Vec<String>> = std::iter::once(head.clone()).chain(rows).collect();
    if rows.len() > 1 { aligned(&rows) } else { String::new() }
}

fn known(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn variant_rows(model: &ModelStatus) -> impl Iterator<Item = Vec<String>> {
    model.variants.iter().map(|variant| {
        let (name, tasks) = (variant.name.clone(), variant.tasks.to_string());
        let batch = known(variant.mean_batch, 1);
        let [accuracy, latency] = [variant.accuracy, variant.latency_ms].map(|x| format!("{x:.2}"));
        vec![model.name.clone(), name, accuracy, latency, tasks, batch]
    })
}

fn cache_row(model: &ModelStatus) -> Option<Vec<String>> {
    let ModelCacheStatus { copies, cold, cold_in_time, failed, failure } = model.cache.as_ref()?;
    let counts = [u64::from(*copies), *cold, *cold_in_time, *failed].map(|count| count.to_string());
    let failure = failure.clone().unwrap_or_else(|| "-".to_owned());
    Some(std::iter::once(model.name.clone()).chain(counts).chain([failure]).collect())
}

fn model_row(model: &ModelStatus) -> Vec<String> {
    vec![
        model.name.clone(),
        model.subcluster.clone(),
        model.queue.to_string(),
        format!("{:.1}", model.rate_rps),
        known(model.bad_rate.map(|rate| rate * 100.0), 2),
        known(model.mean_batch, 1),
        known(model.p50_ms, 1),
        known(model.p99_ms, 1),
        model.slo_ms.to_string(),
        format!("{:.1}", model.refused_rps),
    ]
}

fn member_row(member: &MemberStatus) -> Vec<String> {
    let name = match (&member.name, member.role) {
        (Some(name), MemberRole::Backend) => format!("backend {name}"),
        (None, MemberRole::Backend) => format!("backend {}", member.number),
        (_, MemberRole::Frontend) => format!("frontend {}", member.number),
    };
    let missing = member.missing.iter().map(String::as_str);
    let state = [member.state.as_str()].into_iter().chain(missing).collect::<Vec<_>>().join(" ");
    let tasks = member.outstanding.to_string();
    vec![name, member.addr.clone(), span(member.member_s), state, tasks]
}

fn gpu_row(gpu: &GpuStatus) -> Vec<String> {
    let busy = format!("{:.0}", gpu.busy * 100.0);
    let pages = gpu.pages_free.map_or_else(|| "-".to_owned(), |pages| pages.to_string());
    let loads = gpu.loads.map_or_else(|| "-".to_owned(), |loads| loads.to_string());
    let loader = known(gpu.loader_busy.map(|busy| busy * 100.0), 0);
    let (slot, backend) = (gpu.slot.to_string(), gpu.backend.clone());
    vec![slot, backend, gpu.subcluster.clone(), busy, pages, loads, loader]
}

fn load_row(load: &LoadEntry) -> Vec<String> {
    let outcome = load.outcome.clone().unwrap_or_else(|| "under way".to_owned());
    vec![
        span(load.age_s),
        load.model.clone(),
        load.slot.to_string(),
        load.reason.clone(),
        load.victims.to_string(),
        format!("{:.1}", load.planned_ms),
        known(load.ended_ms, 1),
        outcome,
    ]
}

fn event_row(event: &EventStatus) -> Vec<String> {
    let why = match (&event.reason, event.detail.as_str()) {
        (Some(reason), "") => reason.clone(),
        (Some(reason), detail) => format!("{reason}: {detail}"),
        (None, detail) => detail.to_owned(),
    };
    vec![span(event.age_s), event.event.clone(), event.subject.clone(), why]
}

/// A time, to the two units that matter.
fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    match whole {
        0..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3_600 => format!("{minutes} min {} s", whole % 60),
        3_600..86_400 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_client::status::{SchedulerStatus, SubclusterStatus};

    fn status() -> ClusterStatus {
        let scheduler = SchedulerStatus {
            version: "1.2.3".into(),
            policy: "baton".into(),
            uptime_s: 3_725.0,
            window_s: 7.4,
            ..SchedulerStatus::default()
        };
        let model = ModelStatus {
            name: "digits".into(),
            subcluster: "main".into(),
            slo_ms: 25.0,
            queue: 3,
            rate_rps: 199.96,
            bad_rate: Some(0.0123),
            p99_ms: Some(24.04),
            ..ModelStatus::default()
        };
        let lost = EventStatus {
            age_s: 3.21,
            event: "lost".into(),
            subject: "backend b".into(),
            reason: Some("silent".into()),
            detail: "nothing heard for 1000 ms".into(),
        };
        ClusterStatus {
            scheduler,
            subclusters: vec![
                SubclusterStatus {
                    name: "main".into(),
                    gpus: 4,
                    gpus_needed: 2,
                    rules: Some("own".into()),
                },
                SubclusterStatus {
                    name: "b".into(),
                    gpus: 1,
                    gpus_needed: 1,
                    rules: Some("part".into()),
                },
            ],
            models: vec![model],
            events: vec![EventStatus::default(), lost],
            ..ClusterStatus::default()
        }
    }

    #[test]
    fn the_text_says_what_is_known_and_marks_what_is_not() {
        let text = as_text(&status());
        let blocks: Vec<&str> = text.split("\n\n").collect();
        let [summary, models, events] = blocks[..] else { panic!("no empty tables: {text}") };
        assert_eq!(
            summary,
            "baton 1.2.3, policy baton, up 1 h 2 min; figures of the last 7 s\n\
             sub-cluster main: 4 GPUs serve, 2 needed\n\
             sub-cluster b: 1 GPU serves, 1 needed; follows the rules part"
        );
        let row: Vec<&str> = models.lines().nth(1).expect("a row").split_whitespace().collect();
        assert_eq!(row, ["digits", "main", "3", "200.0", "1.23", "-", "-", "24.0", "25"]);
        let newest = events.lines().nth(1).expect("a row");
        assert!(newest.starts_with("3.2 s"), "the newest comes first: {newest}");
        assert!(newest.ends_with("silent: nothing heard for 1000 ms"), "{newest}");
    }

    #[test]
    fn what_quotas_refuse_has_a_column_while_they_do() {
        let mut status = status();
        assert!(!as_text(&status).contains("over quota/s"));
        status.models[0].refused_rps = 150.0;
        let text = as_text(&status);
        let row = text.lines().find(|line| line.starts_with("digits")).expect("its row");
        assert!(text.contains("over quota/s") && row.trim_end().ends_with("150.0"), "{text}");
    }

    #[test]
    fn slots_have_columns_of_caches_where_a_slot_has_a_cache() {
        let slot =
            |pages_free| GpuStatus { backend: "a".into(), pages_free, ..GpuStatus::default() };
        let head = |gpus| {
            let text = as_text(&ClusterStatus { gpus, ..ClusterStatus::default() });
            text.lines()
                .find(|line| line.starts_with("slot"))
                .expect("a table")
                .trim_end()
                .to_owned()
        };
        assert!(head(vec![slot(None)]).ends_with("busy %"));
        assert!(head(vec![slot(None), slot(Some(7))]).contains("free pages"));
    }

    #[test]
    fn the_json_has_the_keys_that_scripts_read() {
        let json: serde_json::Value =
            serde_json::from_str(&shown(&status(), true)).expect("it is JSON");
        for key in ["models", "members", "gpus", "gpus_needed", "policy", "version", "uptime_s"] {
            assert!(json.get(key).is_some(), "{key} is missing: {json}");
        }
        let model = &json["models"][0];
        for key in ["name", "queue", "rate_rps", "bad_rate", "mean_batch", "p50_ms", "p99_ms"] {
            assert!(model.get(key).is_some(), "{key} is missing: {model}");
        }
    }

    #[test]
    fn a_picture_fits_into_the_terminal() {
        assert_eq!(fitted("ab\ncd\n", 3, 80), ["ab", "cd"]);
        assert_eq!(fitted("äbc\nd", 9, 2), ["äb", "d"]);
        let cut = fitted("1\n2\n3\n4\n5", 4, 80);
        assert_eq!(cut, ["1", "2", "… 3 more lines; a larger window shows them"]);
    }

    #[test]
    fn times_have_two_units() {
        let spans = [0.04, 9.96, 59.9, 60.0, 3_599.0, 90_061.0].map(span);
        assert_eq!(spans, ["0.0 s", "10.0 s", "59 s", "1 min 0 s", "59 min 59 s", "1 d 1 h"]);
    }
}
